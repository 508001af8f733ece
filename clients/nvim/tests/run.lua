--- Tests in a headless Neovim, against a real daemon with a tiny random model; see test.sh.

local attar = require("attar")
local edit = require("attar.edit")
local rpc = require("attar.rpc")

local uv = vim.uv or vim.loop

local TIMEOUT = 60000
--- With this the tiny model's text is more than blanks, which are held back, and has no end.
local LIVELY = { temperature = 0.7, seed = 1 }
local folder = assert(vim.env.ATTAR_TEST_FOLDER)
local program, model = assert(vim.env.ATTAR), assert(vim.env.ATTAR_TEST_MODEL)

--- The daemon leaves its process id behind, for test.sh to end it whatever happens.
local serve = {
  "sh", "-c", 'echo $$ >"$0"; exec "$@"', folder .. "/pid",
  program, "serve", "--data-dir", folder .. "/data", "--model", model, "--threads", "1",
}

local defaults = vim.tbl_extend("force", attar.options, {
  socket = folder .. "/attar.sock",
  start = serve,
  max_tokens = 20,
})

--- What the plugin has told the user in this test.
local told
vim.notify = function(message)
  told = told .. message .. "\n"
end

local function wait(what, is_so)
  assert(vim.wait(TIMEOUT, is_so, 5), "never came: " .. what .. "; told: " .. told)
end

local function equal(wanted, given)
  assert(vim.deep_equal(wanted, given), ("wanted %s, given %s"):format(vim.inspect(wanted), vim.inspect(given)))
end

local function has(text, part)
  assert(text:find(part, 1, true), ("%q is not in %q"):format(part, text))
end

local function idle()
  return not attar.statusline():find("%a$")
end

--- Waits for the end of a generation, and for its text.
local function wait_idle()
  wait("the end of a generation", idle)
  local is_written = false
  vim.schedule(function()
    is_written = true
  end)
  wait("its text", function()
    return is_written
  end)
end

local function text(name)
  local buffer = vim.fn.bufnr("^" .. name .. "$")
  return buffer >= 0 and table.concat(vim.api.nvim_buf_get_lines(buffer, 0, -1, false), "\n") or nil
end

--- Calls the daemon directly.
local function call(method, params)
  local outcome
  rpc.connect(attar.socket(), function(err, connection)
    outcome = { err = err, connection = connection }
  end)
  wait("a connection", function()
    return outcome
  end)
  assert(not outcome.err, outcome.err)
  local result, err = outcome.connection:wait(method, params, TIMEOUT)
  outcome.connection:close()
  return assert(result, err and err.message)
end

local function history()
  return call("session/show", { session = attar.options.session() }).history
end

--- The connection that the plugin has made last.
local connection
local connect_or_start = rpc.connect_or_start
rpc.connect_or_start = function(path, command, timeout, done)
  connect_or_start(path, command, timeout, function(err, made)
    connection = made
    done(err, made)
  end)
end

local function shut_down()
  call("daemon/shutdown", vim.empty_dict())
  local pid = tonumber(vim.fn.readfile(folder .. "/pid")[1])
  wait("the end of the daemon", function()
    return connection.closed and uv.kill(pid, 0) ~= 0
  end)
  wait("the end of the daemon", function()
    return vim.fn.getftype(attar.socket()) == ""
  end)
end

local function lines(...)
  vim.api.nvim_buf_set_lines(0, 0, -1, false, { ... })
end

local function buffer_lines()
  return vim.api.nvim_buf_get_lines(0, 0, -1, false)
end

--- Proposes an edit of line 2 of "one two three", as the model's answer would.
local function propose(answer)
  lines("one", "two", "three")
  edit.new(vim.api.nvim_get_current_buf(), 2, { "two" }):propose(answer)
end

local tests = {}

function tests.ask_starts_a_daemon_and_streams_an_answer()
  equal("", attar.statusline())
  lines("one", "two", "three")
  vim.bo.filetype = "python"
  vim.cmd("2,3AttarAsk what is this?")
  wait_idle()
  assert(attar.statusline():match("^attar %d+/4096$"), attar.statusline())
  has(text("attar://answer"), "> what is this?")
  has(text("attar://answer"), "(length)")
  equal("", told)

  local said, answer = unpack(history())
  equal("what is this?\n\nA new file, lines 2 to 3:\n```python\ntwo\nthree\n```", said.content)
  has(text("attar://answer"), answer.content)
end

function tests.ask_without_a_range_sends_no_code()
  lines("secret")
  vim.cmd("AttarAsk hello")
  wait_idle()
  equal("hello", history()[1].content)
end

function tests.ask_without_a_question_asks_for_one()
  vim.ui.input = function(_, done)
    done("typed")
  end
  vim.cmd("AttarAsk")
  wait_idle()
  equal("typed", history()[1].content)
end

function tests.stop_ends_a_generation()
  attar.setup({ max_tokens = 1000000, sampling = LIVELY })
  vim.cmd("AttarAsk hello")
  wait("text", function()
    return attar.statusline():find("answering$")
  end)
  vim.cmd("AttarAsk me too")
  has(told, "under way")
  vim.cmd("AttarStop")
  wait_idle()
  has(text("attar://answer"), "(cancelled)")
  equal(2, #history())
end

function tests.what_the_daemon_refuses_is_told()
  attar.setup({ max_tokens = 0 })
  vim.cmd("AttarAsk hello")
  wait_idle()
  has(told, "max_tokens is 0")
end

function tests.edit_shows_a_diff_of_what_the_model_answers()
  -- Text at random ends by itself at some point.
  attar.setup({ max_tokens = 20000, sampling = { temperature = 1.5, seed = 7 } })
  lines("one", "two", "three")
  local buffer = vim.api.nvim_get_current_buf()
  vim.cmd("2AttarEdit make it better")
  wait_idle()
  has(history()[1].content, "make it better\n\nA new file, lines 2 to 2:\n```\ntwo\n```\n\nAnswer with")
  has(text("attar://edit"), "\n-two\n+")
  vim.cmd("AttarAccept")
  local wanted = edit.lines(history()[2].content)
  table.insert(wanted, 1, "one")
  table.insert(wanted, "three")
  equal(wanted, vim.api.nvim_buf_get_lines(buffer, 0, -1, false))
  vim.cmd("silent undo")
  equal({ "one", "two", "three" }, buffer_lines())
end

function tests.half_an_answer_is_no_edit()
  lines("one")
  vim.cmd("AttarEdit more")
  wait_idle()
  has(told, "not whole (length)")
  equal(nil, text("attar://edit"))
end

function tests.an_accepted_edit_is_one_step_to_undo()
  propose("Sure!\n```\nzwei\nzweieinhalb\n```\nDone.")
  equal("@@ -1 +1,2 @@\n-two\n+zwei\n+zweieinhalb", text("attar://edit"))
  equal({ "one", "two", "three" }, buffer_lines())
  vim.cmd("AttarAccept")
  equal({ "one", "zwei", "zweieinhalb", "three" }, buffer_lines())
  equal(nil, text("attar://edit"))
  vim.cmd("silent undo")
  equal({ "one", "two", "three" }, buffer_lines())
  vim.cmd("silent redo")
  equal({ "one", "zwei", "zweieinhalb", "three" }, buffer_lines())
end

function tests.a_rejected_edit_changes_nothing()
  propose("```\nzwei\n```")
  vim.cmd("AttarReject")
  equal(nil, text("attar://edit"))
  vim.cmd("AttarAccept")
  has(told, "no edit is shown")
  equal({ "one", "two", "three" }, buffer_lines())
end

function tests.an_edit_follows_its_lines()
  propose("```\nzwei\n```")
  vim.api.nvim_buf_set_lines(0, 0, 0, false, { "zero" })
  vim.cmd("AttarAccept")
  equal({ "zero", "one", "zwei", "three" }, buffer_lines())
end

function tests.lines_that_have_changed_are_left_alone()
  propose("```\nzwei\n```")
  vim.api.nvim_buf_set_lines(0, 1, 2, false, { "deux" })
  vim.cmd("AttarAccept")
  has(told, "have changed")
  equal({ "one", "deux", "three" }, buffer_lines())
end

function tests.an_edit_of_nothing_is_told()
  propose("```\ntwo\n```")
  has(told, "changes nothing")
  equal(nil, text("attar://edit"))
end

function tests.the_lines_of_an_answer()
  equal({ "a", "", "b" }, edit.lines("Here:\n```lua\na\n\nb\n```\nand\n```\nc\n```"))
  equal({ "```", "a", "```" }, edit.lines("````md\n```\na\n```\n````"))
  equal({ "a" }, edit.lines("~~~\na\n~~~"))
  equal({ "a", "b" }, edit.lines("```\na\nb"))
  equal({ "a", " b" }, edit.lines("\na\n b\n"))
  equal({}, edit.lines("```\n```"))
end

function tests.a_session_outlives_daemon_and_connection()
  vim.cmd("AttarAsk one")
  wait_idle()
  shut_down()
  vim.cmd("AttarAsk two")
  wait_idle()
  local said = vim.tbl_map(function(message)
    return message.content
  end, history())
  equal({ "one", "two" }, { said[1], said[3] })
end

function tests.without_a_daemon_the_user_is_told()
  shut_down()
  attar.setup({ start = false })
  vim.cmd("AttarAsk hello")
  wait_idle()
  has(told, "start one with `attar serve`")
  told = ""
  attar.setup({ start = { "no-such-program" } })
  vim.cmd("AttarAsk hello")
  wait_idle()
  has(told, "cannot run no-such-program")
  told = ""
  attar.setup({ start = { program, "serve", "--no-such-flag" } })
  vim.cmd("AttarAsk hello")
  wait_idle()
  has(told, "ended at once (2)")
end

function tests.checkhealth_tells_what_is_there()
  vim.cmd("AttarAsk hello")
  wait_idle()
  vim.cmd("checkhealth attar")
  local report = table.concat(buffer_lines(), "\n")
  has(report, "`sh` can be run")
  has(report, "listens at " .. attar.socket())
  has(report, "tiny-qwen2")
  vim.cmd("bwipeout!")
  attar.setup({ socket = folder .. "/nothing", start = { "no-such-program" } })
  vim.cmd("checkhealth attar")
  report = table.concat(buffer_lines(), "\n")
  has(report, "not in $PATH")
  has(report, "no daemon listens")
end

function tests.the_help_has_its_tags()
  local doc = folder .. "/doc"
  vim.fn.mkdir(doc)
  local file = vim.api.nvim_get_runtime_file("doc/attar.txt", false)[1]
  vim.fn.writefile(vim.fn.readfile(file), doc .. "/attar.txt")
  vim.cmd("helptags " .. doc)
  local tags = table.concat(vim.fn.readfile(doc .. "/tags"), "\n")
  for _, tag in ipairs({ ":AttarAsk", ":AttarEdit", ":AttarAccept", "attar-statusline", "attar.txt" }) do
    has(tags, tag .. "\t")
  end
end

-- In the order in which they are written: the first sees a plugin that nobody has used.
local names = {}
for line in io.lines(debug.getinfo(1, "S").source:sub(2)) do
  names[#names + 1] = line:match("^function tests%.([%w_]+)")
end
local failed = 0
for _, name in ipairs(names) do
  told = ""
  vim.cmd("silent! only! | enew!")
  attar.options = vim.tbl_extend("force", defaults, {
    session = function()
      return name
    end,
  })
  local ok, err = xpcall(tests[name], debug.traceback)
  print(("%s %s\n"):format(ok and "ok  " or "FAIL", name))
  if not ok then
    failed = failed + 1
    print(err .. "\n")
  end
end
attar.options = defaults
pcall(shut_down)
print(("%d tests, %d failed\n"):format(#names, failed))
vim.cmd(failed == 0 and "qall!" or "cquit 1")
