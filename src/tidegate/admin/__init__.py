"""What operators look at and manage: projects, health, watermarks, markers, removal."""
