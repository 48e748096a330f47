"""The kernel's end of what goes on between it and the page that shows the notebook."""
