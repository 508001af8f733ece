--- JSON-RPC 2.0 over the daemon's Unix socket, one JSON text a line.
--- Every callback runs in the main loop, where all of Neovim's API may be used.

local uv = vim.uv or vim.loop

local M = {}

--- How often a daemon that was just started is looked for, in milliseconds.
local LOOK_EVERY = 50

--- A connection to the daemon.
local Connection = {}
Connection.__index = Connection

--- Where daemons listen unless told otherwise.
function M.default_socket()
  local named = vim.env.ATTAR_SOCKET
  if named and named ~= "" then
    return named
  end
  local runtime = vim.env.XDG_RUNTIME_DIR
  if runtime and runtime:sub(1, 1) == "/" and vim.fn.isdirectory(runtime) == 1 then
    return runtime .. "/attar/attar.sock"
  end
  return ("%s/attar-%d/attar.sock"):format(vim.env.TMPDIR or "/tmp", uv.getuid())
end

--- Calls `method`. `done(error, result)` is called once; `notified(method, params)` for every
--- notification about the request's session that comes before.
function Connection:request(method, params, done, notified)
  if self.closed then
    return done({ message = "the connection to the daemon is closed" })
  end
  self.last_id = self.last_id + 1
  self.waiting[self.last_id] = { done = done, notified = notified, session = params.session }
  local request = { jsonrpc = "2.0", id = self.last_id, method = method, params = params }
  self.pipe:write(vim.json.encode(request) .. "\n")
end

--- Calls `method` and waits up to `timeout` milliseconds. Gives the result, or nil and the error.
function Connection:wait(method, params, timeout)
  local answer
  self:request(method, params, function(err, result)
    answer = { err = err, result = result }
  end)
  vim.wait(timeout, function()
    return answer ~= nil
  end, 10)
  if not answer then
    return nil, { message = "the daemon does not answer" }
  end
  return answer.result, answer.err
end

--- Closes the connection; whoever waits is told that it is closed, or `reason`.
function Connection:close(reason)
  if self.closed then
    return
  end
  self.closed = true
  self.pipe:close()
  local waiting = self.waiting
  self.waiting = {}
  for _, request in pairs(waiting) do
    request.done({ message = reason or "the connection to the daemon is closed" })
  end
end

function Connection:receive(message)
  if message.method then
    for _, request in pairs(self.waiting) do
      if request.notified and request.session == message.params.session then
        request.notified(message.method, message.params)
      end
    end
    return
  end
  local request = self.waiting[message.id]
  if request then
    self.waiting[message.id] = nil
    request.done(message.error, message.result)
  elseif message.error then
    -- It refused a request whose id it could not read, so one of ours will never be answered.
    self:close(message.error.message)
  end
end

--- Reads lines, however they are cut into chunks.
function Connection:read()
  local partial = {}
  self.pipe:read_start(function(err, chunk)
    if err or not chunk then
      return vim.schedule(function()
        self:close("the daemon closed the connection")
      end)
    end
    local from, lines = 1, {}
    for at in chunk:gmatch("()\n") do
      partial[#partial + 1] = chunk:sub(from, at - 1)
      lines[#lines + 1] = table.concat(partial)
      partial, from = {}, at + 1
    end
    partial[#partial + 1] = chunk:sub(from)
    vim.schedule(function()
      for _, line in ipairs(lines) do
        local ok, message = pcall(vim.json.decode, line)
        if not ok or type(message) ~= "table" then
          return self:close("the daemon sent what is not JSON")
        end
        self:receive(message)
      end
    end)
  end)
end

--- Connects to the daemon on the socket `path`; calls `done(error, connection)`.
function M.connect(path, done)
  local found = uv.fs_stat(path)
  if found and found.uid ~= uv.getuid() and found.uid ~= 0 then
    return done(("%s belongs to another user, who could read all that is sent"):format(path))
  end
  local pipe = uv.new_pipe(false)
  pipe:connect(path, function(err)
    vim.schedule(function()
      if err then
        pipe:close()
        return done(("no daemon listens at %s; start one with `attar serve` (%s)"):format(path, err))
      end
      local connection = setmetatable({ pipe = pipe, last_id = 0, waiting = {} }, Connection)
      connection:read()
      done(nil, connection)
    end)
  end)
end

--- As `connect`, but runs `command` (with the socket added) where no daemon listens, and waits up
--- to `timeout` milliseconds for it. The daemon outlives Neovim.
function M.connect_or_start(path, command, timeout, done)
  local function try(failed)
    M.connect(path, function(err, connection)
      if connection then
        return done(nil, connection)
      end
      failed(err)
    end)
  end
  try(function(err)
    if not command then
      return done(err)
    end
    local process, fault, status
    local arguments = vim.list_extend(vim.list_slice(command, 2), { "--socket", path })
    process, fault = uv.spawn(command[1], { args = arguments, detached = true }, function(code)
      status = code
      process:close()
    end)
    if not process then
      return done(("cannot run %s: %s"):format(command[1], fault))
    end
    process:unref()
    local deadline = uv.now() + timeout
    local function again()
      try(function()
        if status then
          done(("the daemon ended at once (%d); run `%s` to see why"):format(status, table.concat(command, " ")))
        elseif uv.now() > deadline then
          process:kill("sigterm")
          done(("the daemon did not listen at %s in time"):format(path))
        else
          vim.defer_fn(again, LOOK_EVERY)
        end
      end)
    end
    again()
  end)
end

return M
