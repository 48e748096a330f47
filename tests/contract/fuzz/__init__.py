"""Whatever comes in: nothing raises what it should not, nothing takes more than linear time."""
