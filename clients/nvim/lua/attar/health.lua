--- `:checkhealth attar`

local M = {}

-- Neovim has had this module in three shapes.
local health = vim.health or require("health")
local start = health.start or health.report_start
local ok = health.ok or health.report_ok
local warn = health.warn or health.report_warn
local bad = health.error or health.report_error

local TIMEOUT = 5000

function M.check()
  local attar = require("attar")
  local rpc = require("attar.rpc")

  start("attar")
  if vim.fn.has("nvim-0.7") == 1 then
    ok("Neovim is new enough")
  else
    bad("Neovim is older than 0.7")
  end

  local command = attar.options.start
  if not command then
    ok("no daemon is started by itself, as configured")
  elseif vim.fn.executable(command[1]) == 1 then
    ok(("`%s` can be run"):format(command[1]))
  else
    warn(("`%s` is not in $PATH"):format(command[1]), {
      "install it: cargo install --path path/to/attar",
      "or name it in require('attar').setup({ start = { 'path/to/attar', 'serve' } })",
    })
  end

  local outcome
  rpc.connect(attar.socket(), function(err, connection)
    outcome = { err = err, connection = connection }
  end)
  vim.wait(TIMEOUT, function()
    return outcome ~= nil
  end, 10)
  if not outcome or outcome.err then
    local why = outcome and outcome.err or ("%s does not accept connections"):format(attar.socket())
    return warn(why, { command and ":AttarAsk starts one" or "run `attar serve`" })
  end
  local status, err = outcome.connection:wait("daemon/status", vim.empty_dict(), TIMEOUT)
  outcome.connection:close()
  if not status then
    return bad(err.message)
  end
  ok(("Attar %s (process %d) listens at %s"):format(status.version, status.pid, attar.socket()))
  ok(("its model is %s"):format(status.model))
end

return M
