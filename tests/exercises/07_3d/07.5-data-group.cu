  stages = &mesh.data;
