module numaflow_source

go 1.25

require github.com/numaproj/numaflow-go v0.0.0
