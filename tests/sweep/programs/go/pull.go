// A worker that pulls jobs in short fetches, of which any may find nothing, and gives up after 20 s.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const jobs = 6

func main() {
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Name("go-puller"), nats.ReconnectWait(200*time.Millisecond))
	check(err)
	defer nc.Close()
	js, err := nc.JetStream()
	check(err)
	sub, err := js.PullSubscribe("jobs.new", "pullers", nats.BindStream("JOBS"), nats.AckWait(time.Second))
	check(err)
	done := map[string]bool{}
	deadline := time.Now().Add(20 * time.Second)
	for len(done) < jobs {
		if time.Now().After(deadline) {
			log.Fatalf("only %d jobs came", len(done))
		}
		found, err := sub.Fetch(3, nats.MaxWait(500*time.Millisecond))
		if err != nil {
			continue
		}
		for _, job := range found {
			done[strings.TrimSpace(string(job.Data))] = true
			check(job.Ack())
		}
	}
	check(nc.FlushTimeout(5 * time.Second))
	fmt.Println("jobs done:", len(done))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
