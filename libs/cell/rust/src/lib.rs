//! One cell's state: records to index, worker table, leases, and the gRPC server over them.
