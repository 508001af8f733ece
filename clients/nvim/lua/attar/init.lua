--- Ask Attar about code, and let it edit code. See |attar.txt|.

local rpc = require("attar.rpc")

local M = {}

M.options = {
  --- Path of the daemon's socket; nil is where daemons listen by default.
  socket = nil,
  --- Command that starts a daemon where none runs; false never starts one.
  start = { "attar", "serve" },
  --- Milliseconds that a daemon may take to start.
  start_timeout = 60000,
  --- Id of the session to use: one for each working directory.
  session = function()
    return "nvim-" .. vim.fn.sha256(vim.fn.getcwd()):sub(1, 16)
  end,
  --- More parameters of `session/open`, such as `{ cache = { budget = 2048 } }`.
  open = {},
  --- Tokens of an answer, at most.
  max_tokens = 1024,
  --- Parameters of sampling, such as `{ temperature = 0.7 }`; nil decodes greedily.
  sampling = nil,
}

--- What there is at the moment: the connection, the session opened over it, whether it generates
--- (and what), and its cache after the last answer.
local state = {}

function M.setup(options)
  M.options = vim.tbl_extend("force", M.options, options or {})
end

--- Path of the daemon's socket.
function M.socket()
  return M.options.socket or rpc.default_socket()
end

local function fail(message)
  vim.notify("attar: " .. message, vim.log.levels.ERROR)
end

--- Calls `done(connection, session)` once both are there; `failed(message)` otherwise.
local function open(done, failed)
  local session = M.options.session()
  local connection = state.connection
  if connection and not connection.closed and state.session == session then
    return done(connection, session)
  end
  local start = M.options.start or nil
  rpc.connect_or_start(M.socket(), start, M.options.start_timeout, function(err, made)
    if err then
      return failed(err)
    end
    if connection then
      connection:close()
    end
    local params = vim.tbl_extend("force", M.options.open, { session = session })
    made:request("session/open", params, function(refused)
      if refused then
        made:close()
        return failed(refused.message)
      end
      state.connection, state.session, state.cache = made, session, nil
      done(made, session)
    end)
  end)
end

local function show_status(phase)
  state.phase = phase
  vim.cmd("redrawstatus!")
end

--- Says `text` to the model. `on_text(piece)` is called for each piece of the answer as it comes,
--- `done(error, answer)` at the end.
function M.say(text, on_text, done)
  if state.phase then
    return done("a generation is under way; :AttarStop ends it")
  end
  local function ended(err, answer)
    show_status(nil)
    done(err, answer)
  end
  show_status("starting")
  open(function(connection, session)
    local params = {
      session = session,
      messages = { { role = "user", content = text } },
      max_tokens = M.options.max_tokens,
      sampling = M.options.sampling,
      stream = true,
    }
    show_status("reading")
    connection:request("session/generate", params, function(err, answer)
      if err then
        return ended(err.message)
      end
      state.cache = answer.cache
      ended(nil, answer)
    end, function(method, news)
      if method ~= "session/delta" then
        return
      end
      local phase = news.kind == "reasoning" and "thinking" or "answering"
      if phase ~= state.phase then
        show_status(phase)
      end
      if news.kind == "content" then
        on_text(news.text)
      end
    end)
  end, ended)
end

--- For a statusline: what Attar does, and how many slots of the cache's budget are taken.
function M.statusline()
  local parts = {}
  if state.cache then
    parts[1] = ("%d/%d"):format(state.cache.kept, state.cache.budget)
  end
  parts[#parts + 1] = state.phase
  return #parts > 0 and "attar " .. table.concat(parts, " ") or ""
end

--- The lines of a command's range, fenced, under the name of their file.
local function quote(first, last)
  local lines = vim.api.nvim_buf_get_lines(0, first - 1, last, false)
  local name = vim.fn.fnamemodify(vim.api.nvim_buf_get_name(0), ":.")
  local text = table.concat(lines, "\n")
  local fence = "```"
  while text:find(fence, 1, true) do
    fence = fence .. "`"
  end
  local where = ("%s, lines %d to %d:"):format(name == "" and "A new file" or name, first, last)
  return table.concat({ where, fence .. vim.bo.filetype, text, fence }, "\n"), lines
end

--- The text given to a command, else what the user types; nothing happens without any.
local function with_text(call, prompt, done)
  if call.args ~= "" then
    return done(call.args)
  end
  vim.ui.input({ prompt = prompt }, function(text)
    if text and text ~= "" then
      done(text)
    end
  end)
end

function M.ask(call)
  local code = call.range > 0 and quote(call.line1, call.line2) or nil
  with_text(call, "Ask: ", function(question)
    local window = require("attar.window").answer(question)
    M.say(code and question .. "\n\n" .. code or question, window.append, function(err, answer)
      if err then
        window.append("\n")
        return fail(err)
      end
      local why = answer.finish_reason
      window.append(why == "stop" and "\n\n" or ("\n\n(%s)\n\n"):format(why))
    end)
  end)
end

function M.edit(call)
  local first, last = call.line1, call.line2
  if call.range == 0 then
    first, last = 1, vim.api.nvim_buf_line_count(0)
  end
  local buffer = vim.api.nvim_get_current_buf()
  local code, lines = quote(first, last)
  with_text(call, "Edit: ", function(wish)
    local edit = require("attar.edit").new(buffer, first, lines)
    local text = ("%s\n\n%s\n\nAnswer with the new text of these lines alone, in one code block."):format(wish, code)
    M.say(text, function() end, function(err, answer)
      if not err and answer.finish_reason ~= "stop" then
        err = ("the answer is not whole (%s)"):format(answer.finish_reason)
      end
      if err then
        edit:forget()
        return fail(err)
      end
      edit:propose(answer.message.content)
    end)
  end)
end

function M.accept()
  require("attar.edit").accept()
end

function M.reject()
  require("attar.edit").reject()
end

function M.stop()
  if not state.phase or not state.connection then
    return
  end
  state.connection:request("session/cancel", { session = state.session }, function(err)
    if err then
      fail(err.message)
    end
  end)
end

return M
