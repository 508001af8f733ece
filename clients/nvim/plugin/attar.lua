if vim.g.loaded_attar then
  return
end
vim.g.loaded_attar = true

local function command(name, run, options)
  vim.api.nvim_create_user_command(name, function(call)
    require("attar")[run](call)
  end, options)
end

command("AttarAsk", "ask", { nargs = "*", range = true, desc = "Ask the model, about a range if one is given" })
command("AttarEdit", "edit", { nargs = "*", range = true, desc = "Let the model rewrite the range, or the whole buffer" })
command("AttarAccept", "accept", { desc = "Apply the edit that is shown" })
command("AttarReject", "reject", { desc = "Drop the edit that is shown" })
command("AttarStop", "stop", { desc = "End the generation that is under way" })
