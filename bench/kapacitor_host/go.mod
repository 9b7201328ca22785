module dexorder.com/bench/kapacitor_host

go 1.24

require github.com/influxdata/kapacitor v1.5.9

require (
	github.com/dustin/go-humanize v1.0.0 // indirect
	github.com/gogo/protobuf v1.1.1 // indirect
	github.com/golang/protobuf v1.4.3 // indirect
	github.com/google/uuid v1.0.0 // indirect
	github.com/influxdata/influxdb v1.1.4 // indirect
	github.com/pkg/errors v0.8.1 // indirect
	google.golang.org/protobuf v1.23.0 // indirect
)

replace (
	github.com/prometheus/prometheus => github.com/goller/prometheus v1.6.1-0.20170502220046-58298e738211
	gopkg.in/fsnotify.v1 => github.com/fsnotify/fsnotify v1.4.2
)
