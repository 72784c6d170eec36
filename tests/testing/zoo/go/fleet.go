// A fleet service in Go: UUIDs and times, a request, a pull loop with short waits, a key-value watch, goroutines.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

type Trip struct {
	ID      string    `json:"id"`
	Vehicle string    `json:"vehicle"`
	Km      int       `json:"km"`
	Started time.Time `json:"started"`
}

func uuid() string {
	b := make([]byte, 16)
	must(rand.Read(b))
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	nc := must(nats.Connect(os.Getenv("NATS_URL"), nats.Name("fleet")))
	defer nc.Close()
	js := must(nc.JetStream())
	must(js.AddStream(&nats.StreamConfig{Name: "TRIPS", Subjects: []string{"trips.>"}}))

	// Three goroutines publish at once, each with a reservation of its own.
	var group sync.WaitGroup
	var mutex sync.Mutex
	known, lines := map[string]int{}, []string{}
	for n := 1; n <= 3; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			trip := Trip{uuid(), fmt.Sprintf("van-%d", n), n * 10, time.Now()}
			msg := nats.NewMsg("trips." + trip.ID + ".started")
			msg.Header.Set("traceparent", fmt.Sprintf("00-%x-%x-01", must(randomBytes(16)), must(randomBytes(8))))
			msg.Data = must(json.Marshal(trip))
			must(js.PublishMsg(msg, nats.MsgId(trip.ID)))
			wanted := must(json.Marshal(map[string]any{"order_id": trip.ID, "qty": n}))
			var stock struct {
				OrderID   string `json:"order_id"`
				Warehouse string `json:"warehouse"`
			}
			if err := json.Unmarshal(must(nc.Request("inventory.reserve", wanted, 3*time.Second)).Data, &stock); err != nil {
				log.Fatal(err)
			}
			if stock.OrderID != trip.ID {
				log.Fatal("the answer belongs to another trip")
			}
			mutex.Lock()
			defer mutex.Unlock()
			known[trip.ID] = trip.Km
			lines = append(lines, fmt.Sprint(trip.Vehicle, " ", stock.Warehouse))
		}(n)
	}
	group.Wait()
	sort.Strings(lines)
	fmt.Println(lines)

	sub := must(js.PullSubscribe("trips.>", "accounts"))
	km := 0
	for seen := 0; seen < 3; {
		msgs, err := sub.Fetch(2, nats.MaxWait(150*time.Millisecond))
		if errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		for _, msg := range must(msgs, err) {
			var trip Trip
			if err := json.Unmarshal(msg.Data, &trip); err != nil {
				log.Fatal(err)
			}
			if known[trip.ID] != trip.Km || msg.Header.Get("Nats-Msg-Id") != trip.ID {
				log.Fatal("another trip")
			}
			km += trip.Km
			seen++
			if err := msg.AckSync(); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println("km", km)

	kv := must(js.CreateKeyValue(&nats.KeyValueConfig{Bucket: "depots"}))
	must(kv.PutString("instance", uuid()))
	must(kv.PutString("north", "open"))
	watcher := must(kv.WatchAll())
	for entry := range watcher.Updates() {
		if entry == nil {
			must(kv.PutString("ready", "yes"))
		} else if entry.Key() != "instance" {
			fmt.Println(entry.Key(), string(entry.Value()))
			if entry.Key() == "stop" {
				break
			}
		}
	}
	if err := watcher.Stop(); err != nil {
		log.Fatal(err)
	}
}

func randomBytes(n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := rand.Read(b)
	return b, err
}
