"""How far moving spheres stay from obstacles: measured, as a table, and as a chart."""
