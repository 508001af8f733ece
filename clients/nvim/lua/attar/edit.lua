--- An edit that the model proposes: shown as a diff, then applied or dropped.

local M = {}

-- Its name changes with Neovim 0.12.
local unified_diff = vim.text and vim.text.diff or vim.diff

local NAMESPACE = vim.api.nvim_create_namespace("attar")

local Edit = {}
Edit.__index = Edit

--- The edit that is shown, where there is one.
local shown

--- The lines that an answer proposes: those of its first code block, else all of it.
function M.lines(answer)
  local lines = vim.split(answer, "\n")
  local fence, first
  for at, line in ipairs(lines) do
    if not fence then
      fence = line:match("^%s*(```+)") or line:match("^%s*(~~~+)")
      first = fence and at + 1
    else
      local close = line:match("^%s*([`~]+)%s*$")
      if close and close:sub(1, #fence) == fence then
        return vim.list_slice(lines, first, at - 1)
      end
    end
  end
  if fence then
    return vim.list_slice(lines, first)
  end
  return vim.split(vim.trim(answer), "\n")
end

--- An edit of the `lines` of `buffer` that begin at line `first`. It follows them when others
--- above them come or go.
function M.new(buffer, first, lines)
  local mark = vim.api.nvim_buf_set_extmark(buffer, NAMESPACE, first - 1, 0, {})
  return setmetatable({ buffer = buffer, mark = mark, old = lines }, Edit)
end

--- Where the lines begin now, counted from zero; nil if they are not what they were.
function Edit:at()
  if not vim.api.nvim_buf_is_loaded(self.buffer) then
    return nil
  end
  local first = vim.api.nvim_buf_get_extmark_by_id(self.buffer, NAMESPACE, self.mark, {})[1]
  if not first then
    return nil
  end
  local now = vim.api.nvim_buf_get_lines(self.buffer, first, first + #self.old, false)
  return vim.deep_equal(now, self.old) and first or nil
end

--- Shows what `answer` would change.
function Edit:propose(answer)
  self.new = M.lines(answer)
  local function text(lines)
    return table.concat(lines, "\n") .. "\n"
  end
  local diff = unified_diff(text(self.old), text(self.new), {})
  if diff == "" then
    self:forget()
    return vim.notify("attar: the model changes nothing")
  end
  if shown then
    shown:forget()
  end
  shown = self
  local buffer = require("attar.window").open("attar://edit", "diff")
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, vim.split(vim.trim(diff), "\n"))
  vim.keymap.set("n", "a", "<Cmd>AttarAccept<CR>", { buffer = buffer, desc = "Accept" })
  vim.keymap.set("n", "q", "<Cmd>AttarReject<CR>", { buffer = buffer, desc = "Reject" })
  vim.notify("attar: :AttarAccept applies this edit, :AttarReject drops it")
end

function Edit:forget()
  if vim.api.nvim_buf_is_valid(self.buffer) then
    vim.api.nvim_buf_del_extmark(self.buffer, NAMESPACE, self.mark)
  end
end

local function hide()
  local edit = shown
  shown = nil
  local buffer = vim.fn.bufnr("^attar://edit$")
  if buffer >= 0 then
    vim.api.nvim_buf_delete(buffer, { force = true })
  end
  return edit
end

--- Applies the edit that is shown, as one step to undo.
function M.accept()
  if not shown then
    return vim.notify("attar: no edit is shown", vim.log.levels.WARN)
  end
  local edit = hide()
  local first = edit:at()
  if first then
    vim.api.nvim_buf_set_lines(edit.buffer, first, first + #edit.old, true, edit.new)
  else
    vim.notify("attar: the lines have changed since; ask again", vim.log.levels.ERROR)
  end
  edit:forget()
end

--- Drops the edit that is shown.
function M.reject()
  if shown then
    hide():forget()
  end
end

return M
