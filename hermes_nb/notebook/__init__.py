"""The part that runs in Jupyter: magics, commands, panels, and the tools for notebooks."""
