"""What Tidegate keeps beside the rows: markers, watermarks, fences, staging."""
