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
	ended  chan struct{} // closed with its process
	answer Answer        // valid once ended is closed
}

// Ask has a process read the file name, of a mount that key stands for. It returns when the mount has answered, when a question is late, or
// shortly after ctx has ended. Callers that ask for the same at once share an answer: however many they are, they wait for two at most.
func (k *Asker) Ask(ctx context.Context, key, name string) Answer {
	for began := time.Now(); ; {
		k.mu.Lock()
		q := k.open[key]
		if q == nil {
			q = &question{name: name, since: time.Now(), ended: make(chan struct{})}
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
			if q.name == name && q.since.After(began) && q.answer.State != Silent { // else its own caller may have left
				return q.answer
			}
			continue
		case <-time.After(k.Patience - time.Since(q.since)):
		case <-ctx.Done():
		}
		return k.silent()
	}
}

// Late is for how long a mount has left a question unanswered that is late, 0 for none.
func (k *Asker) Late(key string) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if q := k.open[key]; q != nil && time.Since(q.since) >= k.Patience {
		return time.Since(q.since)
	}
	return 0
}

func (k *Asker) put(ctx context.Context, key string, q *question) Answer {
	ctx, cancel := context.WithTimeout(ctx, k.Patience)
	defer cancel()
	life := ctx
	if k.Life != nil {
		life = k.Life
	}
	got := make(chan Answer, 1)
	go func() { // ends with the process, which a stuck daemon can delay
		a := k.run(life, q.name)
		q.answer = a
		k.mu.Lock()
		delete(k.open, key)
		k.mu.Unlock()
		close(q.ended)
		got <- a
	}()
	if a, ok := Wait(ctx, got); ok {
		return a
	}
	return k.silent()
}

func (k *Asker) run(ctx context.Context, name string) (a Answer) {
	out, err := run(ctx, []string{k.Program, FileCommand, "--", name})
	if err == nil {
		err = json.Unmarshal(out, &a)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return k.silent()
	case err != nil:
		return Answer{State: Unreadable, Error: fmt.Sprintf("reading %s in a process of its own: %v", name, err)}
	}
	return a
}

func (k *Asker) silent() Answer {
	return Answer{State: Silent, Error: fmt.Sprintf("its daemon gave no answer within %v: is it stopped or stuck?", k.Patience)}
}

// Err is the error of an answer, nil where there is a text.
func (a *Answer) Err() error {
	if a.State == OK {
		return nil
	}
	return errors.New(a.Error)
}
