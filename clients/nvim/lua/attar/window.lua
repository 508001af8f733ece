--- Scratch windows.

local M = {}

--- Shows the scratch buffer `name` in a window below, and gives the buffer.
function M.open(name, filetype)
  local buffer = vim.fn.bufnr("^" .. vim.fn.escape(name, "[]*?{}") .. "$")
  if buffer < 0 then
    buffer = vim.api.nvim_create_buf(false, true)
    vim.api.nvim_buf_set_name(buffer, name)
    vim.bo[buffer].filetype = filetype
    vim.keymap.set("n", "q", "<Cmd>close<CR>", { buffer = buffer, desc = "Close" })
    vim.keymap.set("n", "<C-c>", "<Cmd>AttarStop<CR>", { buffer = buffer, desc = "Stop" })
  end
  if #vim.fn.win_findbuf(buffer) == 0 then
    local before = vim.api.nvim_get_current_win()
    vim.cmd(("botright %dsplit"):format(math.max(8, math.floor(vim.o.lines / 3))))
    vim.api.nvim_win_set_buf(0, buffer)
    vim.wo.wrap = true
    vim.api.nvim_set_current_win(before)
  end
  return buffer
end

--- The window of answers, with `question` at its end. `append` adds text, and its windows follow.
function M.answer(question)
  local buffer = M.open("attar://answer", "markdown")
  local window = {}
  local pending = {}

  local function flush()
    local text = table.concat(pending)
    pending = {}
    if not vim.api.nvim_buf_is_valid(buffer) then
      return
    end
    local last = vim.api.nvim_buf_line_count(buffer) - 1
    local line = vim.api.nvim_buf_get_lines(buffer, last, -1, false)[1]
    vim.api.nvim_buf_set_lines(buffer, last, -1, false, vim.split(line .. text, "\n"))
    for _, shown in ipairs(vim.fn.win_findbuf(buffer)) do
      vim.api.nvim_win_set_cursor(shown, { vim.api.nvim_buf_line_count(buffer), 0 })
    end
  end

  -- What comes at once is written at once: a fast model must not keep the editor busy.
  function window.append(text)
    if #pending == 0 then
      vim.schedule(flush)
    end
    pending[#pending + 1] = text
  end

  window.append(("> %s\n\n"):format(question:gsub("\n", "\n> ")))
  return window
end

return M
