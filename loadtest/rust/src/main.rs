//! Native load generators for the benchmarks of kvatlas.

fn main() {}
