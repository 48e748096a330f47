"""The side panel: memory, skills, context and sessions, as plain ipywidgets with inline SVG."""
