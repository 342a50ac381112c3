    outgoing = chunks[ring.rank - step];
    incoming = chunks[ring.rank - step - 2];
