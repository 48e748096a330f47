"""What a turn changed in files and cells, kept so that it can be shown and taken back."""
