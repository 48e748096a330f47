"""Run a map's tasks on the engines of an ipyparallel cluster."""
