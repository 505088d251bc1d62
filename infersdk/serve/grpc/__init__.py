"""The protocol over gRPC: the service of `tritonclient`'s protobufs, and the raw contents without extra copies."""
