"""Run the tasks of a map on the engines of an ipyparallel cluster."""
