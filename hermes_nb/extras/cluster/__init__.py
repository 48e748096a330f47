"""Maps whose tasks are done by the engines of an ipyparallel cluster."""
