"""`jupyter hermes …`: the command line, a layer above `hermes_nb.notebook`."""
