  replicas = &mesh.tensor;
