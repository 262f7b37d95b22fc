"""A load: from a source, staged, checked and published into a target."""
