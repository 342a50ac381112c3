  replicas = &mesh.pipeline;
