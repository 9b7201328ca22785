// Kapacitor's own host of UDFs with points in memory: CPU of the UDF's process for each point, and the longest delay of a
// lone point's output.
//
//	kapacitor_host stream|batch POINTS PROGRAM [ARGUMENT...]
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/influxdata/kapacitor/edge"
	"github.com/influxdata/kapacitor/keyvalue"
	"github.com/influxdata/kapacitor/models"
	"github.com/influxdata/kapacitor/udf"
	"github.com/influxdata/kapacitor/udf/agent"
)

const batchPoints = 1000

type silent struct{}

func (silent) Error(text string, err error, _ ...keyvalue.T) { fmt.Fprintln(os.Stderr, text, err) }
func (silent) UDFLog(string)                                 {}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fields(n int) models.Fields {
	value := 100 + float64(n%977)/7
	return models.Fields{"open": value, "high": value + 1, "low": value - 1, "close": value, "volume": float64(n)}
}

func point(n int) edge.PointMessage {
	tags := models.Tags{"ticker": "COIN/USDT.BINANCE", "period": "1m"}
	dimensions := models.Dimensions{TagNames: []string{"period", "ticker"}}
	return edge.NewPointMessage("ohlc", "trading", "", dimensions, fields(n), tags, time.Unix(int64(1700000000+60*n), 0))
}

func batch(first int) edge.BufferedBatchMessage {
	tags := models.Tags{"ticker": "COIN/USDT.BINANCE"}
	points := make([]edge.BatchPointMessage, batchPoints)
	for n := range points {
		points[n] = edge.NewBatchPointMessage(fields(first+n), tags, time.Unix(int64(1700000000+60*(first+n)), 0))
	}
	begin := edge.NewBeginBatchMessage("ohlc", tags, false, time.Unix(int64(1700000000+60*(first+batchPoints)), 0), batchPoints)
	return edge.NewBufferedBatchMessage(begin, points, edge.NewEndBatchMessage())
}

func main() {
	batches := os.Args[1] == "batch"
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	process := exec.Command(os.Args[3], os.Args[4:]...)
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	check(err)
	out, err := process.StdoutPipe()
	check(err)
	check(process.Start())
	stop := func() {}
	server := udf.NewServer("task", "node", bufio.NewReader(out), in, silent{}, 10*time.Second, stop, stop)
	check(server.Start())
	_, err = server.Info()
	check(err)
	option := func(name string, value *agent.OptionValue) *agent.Option {
		return &agent.Option{Name: name, Values: []*agent.OptionValue{value}}
	}
	text := func(value string) *agent.OptionValue {
		return &agent.OptionValue{Type: agent.ValueType_STRING, Value: &agent.OptionValue_StringValue{StringValue: value}}
	}
	options := []*agent.Option{option("field", text("close"))}
	if batches {
		options = append(options, option("scale", &agent.OptionValue{Type: agent.ValueType_DOUBLE, Value: &agent.OptionValue_DoubleValue{DoubleValue: 3}}))
	} else {
		name := os.Getenv("AS_OPTION")
		options = append(options, option("size", &agent.OptionValue{Type: agent.ValueType_INT, Value: &agent.OptionValue_IntValue{IntValue: 20}}), option(name, text("mean")))
	}
	check(server.Init(options))
	received := 0
	last := make(chan time.Time, 1_000_000)
	go func() {
		for range server.Out() {
			received++
			if len(last) < cap(last) {
				last <- time.Now()
			}
		}
		close(last)
	}()
	started := time.Now()
	if batches {
		for first := 0; first < count; first += batchPoints {
			server.In() <- batch(first)
		}
	} else {
		for n := 0; n < count; n++ {
			server.In() <- point(n)
		}
	}
	_, err = server.Snapshot()
	check(err)
	took := time.Since(started)
	for len(last) > 0 {
		<-last
	}
	worst := 0.0
	if !batches {
		for n := 0; n < 100; n++ {
			time.Sleep(20 * time.Millisecond)
			for len(last) > 0 {
				<-last
			}
			sent := time.Now()
			server.In() <- point(count + n)
			if delay := (<-last).Sub(sent).Seconds() * 1000; delay > worst && n > 0 {
				worst = delay
			}
		}
	}
	server.Stop()
	process.Wait()
	cpu := process.ProcessState.UserTime() + process.ProcessState.SystemTime()
	json.NewEncoder(os.Stdout).Encode(map[string]float64{"points_per_second": float64(count) / took.Seconds(), "udf_cpu_seconds": cpu.Seconds(), "outputs": float64(received), "worst_ms": worst})
}
