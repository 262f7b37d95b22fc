"""What Tidegate keeps in a destination database: markers, watermarks, fences, staging."""
