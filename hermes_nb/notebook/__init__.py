"""The part that runs in Jupyter: magics, commands, panels and notebook tools."""
