package aside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Asker asks mounts, each at most one question at a time. A mount that left one unanswered is not asked again before it
// has answered. So a stuck one collects no processes, and costs nobody any time. Its zero value needs a Program.
type Asker struct {
	Program  string          // an hbmfs binary
	Patience time.Duration   // after which a question is late
	Life     context.Context // of its processes, which then outlive a question that is given up; nil: they do not

	mu   sync.Mutex
	open map[string]*question // by mount
}

// question is one that is put.
type question struct {
	name   string
	since  time.Time
	begun  chan struct{} // closed when its process asks
	late   chan struct{} // closed when the mount has left it unanswered for too long
	ended  chan struct{} // closed with its process
	answer Answer        // valid once ended is closed
	left   bool          // the process was ended before it had an answer; valid as that
}

// Ask has a process read the file name, of a mount that key stands for. It returns when the mount has answered, when a question is late, or
// shortly after ctx has ended. Callers that ask for the same at once share an answer: however many they are, they wait for two at most.
func (k *Asker) Ask(ctx context.Context, key, name string) Answer {
	for began := time.Now(); ; {
		k.mu.Lock()
		q := k.open[key]
		if q == nil {
			q = &question{name: name, since: time.Now(), begun: make(chan struct{}), late: make(chan struct{}), ended: make(chan struct{})}
			if k.open == nil {
				k.open = map[string]*question{}
			}
			k.open[key] = q
			k.mu.Unlock()
			return k.put(ctx, key, q)
		}
		k.mu.Unlock()
		select {
		case <-q.ended:
			if q.name == name && q.since.After(began) && !q.left {
				return q.answer
			}
			continue
		case <-q.late:
		case <-ctx.Done():
		}
		return k.silent(q)
	}
}

// Late is for how long a mount has left a question unanswered that is late, 0 for none.
func (k *Asker) Late(key string) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if q := k.open[key]; q != nil {
		select {
		case <-q.late:
			return time.Since(q.since)
		default:
		}
	}
	return 0
}

func (k *Asker) put(ctx context.Context, key string, q *question) Answer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	life := ctx
	if k.Life != nil {
		life = k.Life
	}
	got, patience := make(chan Answer, 1), k.Patience
	go func() { // ends with the process, which a stuck daemon can delay
		a := k.run(life, q)
		q.answer = a
		k.mu.Lock()
		delete(k.open, key)
		k.mu.Unlock()
		close(q.ended)
		got <- a
	}()
	go func() { // ends with the process, too
		if late(patience, q.begun, q.ended) {
			close(q.late)
			cancel()
		}
	}()
	if a, ok := Wait(ctx, got); ok {
		return a
	}
	return k.silent(q)
}

func (k *Asker) run(ctx context.Context, q *question) (a Answer) {
	out, err := run(ctx, []string{k.Program, FileCommand, "--", q.name}, q.begun)
	if err == nil {
		err = json.Unmarshal(out, &a)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		q.left = true
		return k.silent(q)
	case err != nil:
		return Answer{State: Unreadable, Error: fmt.Sprintf("reading %s in a process of its own: %v", q.name, err)}
	}
	return a
}

// silent is the answer to a question that has none. A process that has not begun has asked nobody.
func (k *Asker) silent(q *question) Answer {
	select {
	case <-q.begun:
		return Answer{State: Silent, Error: fmt.Sprintf("its daemon gave no answer within %v: is it stopped or stuck?", k.Patience)}
	default:
		return Answer{State: Unreadable, Error: fmt.Sprintf("the process that would ask it did not start within %v: the machine is busy", time.Since(q.since).Round(time.Second))}
	}
}

// Err is the error of an answer, nil where there is a text.
func (a *Answer) Err() error {
	if a.State == OK {
		return nil
	}
	return errors.New(a.Error)
}
