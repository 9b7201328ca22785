package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
)

// httpClient keeps a connection for each caller.
func httpClient(callers int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, DisableCompression: true}}
}

// httpCaller returns a function that makes a call of Kafka-Pixy's HTTP API.
func httpCaller(j job, kind string, client *http.Client) (func() error, error) {
	value := make([]byte, 1024)
	rand.Read(value)
	messages := fmt.Sprintf("http://%s/topics/%s/messages", j.Address, j.Topic)
	post := func(query string) func() (*http.Response, error) {
		return func() (*http.Response, error) {
			return client.Post(messages+query, "text/plain", bytes.NewReader(value))
		}
	}
	var ask func() (*http.Response, error)
	switch kind {
	case "produce sync":
		ask = post("?sync")
	case "produce async":
		ask = post("")
	case "consume auto":
		ask = func() (*http.Response, error) { return client.Get(messages + "?group=" + j.Group) }
	default:
		return nil, fmt.Errorf("kind %q is unknown", j.Kind)
	}
	return func() error {
		answer, err := ask()
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", answer.Status, body)
		}
		return err
	}, nil
}
