"""What every package uses: registry, progress, worker processes, sharding, file locks. No NumPy here."""
