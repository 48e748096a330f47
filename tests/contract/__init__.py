"""What rebuilding may not touch: promised names, users' files, what earlier versions wrote."""
