"""What a run will take: memory and disk that it needs at least, and CPU time by stage from a short probe of itself."""
