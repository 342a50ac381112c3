  const int next = (ring.rank + 1) % ring.world;
  const int previous = (ring.rank + ring.world - 1) % ring.world;
  NCCL_CHECK(ncclSend(data + outgoing.begin, outgoing.size, ncclFloat, next, ring.comm, ring.stream));
  NCCL_CHECK(ncclRecv(received, incoming.size, ncclFloat, previous, ring.comm, ring.stream));
