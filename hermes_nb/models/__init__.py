"""Model providers; no other layer depends on a particular provider."""
