package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// Options bound a Drain's work. Each field documents its zero value.
type Options struct {
	Rate        int64         // bytes a second; [Auto], or [Unlimited]
	Keep        int           // how many of the newest checkpoints stay in the directory; 0: all. One that is not remote always stays
	Connections int           // requests at once, 0 means 16. Each takes 4 MiB of memory
	PartSize    int64         // of multipart uploads, and the largest object that is stored in one request; 0 means 32 MiB
	TakeOver    bool          // the place at the destination becomes this volume's, once, also if another volume had it
	Poll        time.Duration // between two looks at the directory, 0 means 2 s
	Patience    time.Duration // how long the store may be silent; 0: for ever
	Guard       *fetch.Guard  // of the addresses that are dialled; nil for none
	Log         *slog.Logger  // nil for none

	// Begin is asked before a checkpoint is sent, and its end called afterwards. An error fails the checkpoint for good; nil: nobody is asked.
	Begin func(name string) (end func(), err error)

	// Remove removes a checkpoint that is remote, and is open; nil means [checkpoint.Checkpoint.Remove].
	Remove func(ctx context.Context, c *checkpoint.Checkpoint) error

	retryFirst, retryMost, stall, failedFirst, failedMost, waitFirst, waitMost time.Duration
}

func (o *Options) setDefaults() error {
	switch {
	case o.Keep < 0:
		return fmt.Errorf("%d checkpoints cannot be kept: %w", o.Keep, errInvalid)
	case o.Connections < 0 || o.Connections > 1024:
		return fmt.Errorf("%d connections cannot be: %w", o.Connections, errInvalid)
	case o.PartSize != 0 && (o.PartSize < 5<<20 || o.PartSize > 5<<30):
		return fmt.Errorf("parts of %d bytes are none that S3 takes, 5 MiB to 5 GiB: %w", o.PartSize, errInvalid)
	}
	o.Connections = cmp.Or(o.Connections, 16)
	o.PartSize = partSize(0, cmp.Or(o.PartSize, 32<<20))
	o.Poll = cmp.Or(max(o.Poll, 0), 2*time.Second)
	o.retryFirst, o.retryMost = cmp.Or(o.retryFirst, 200*time.Millisecond), cmp.Or(o.retryMost, time.Minute)
	o.stall = cmp.Or(o.stall, time.Minute)
	if o.Patience > 0 {
		o.stall = min(o.stall, o.Patience)
	}
	o.failedFirst, o.failedMost = cmp.Or(o.failedFirst, 30*time.Second), cmp.Or(o.failedMost, 10*time.Minute)
	o.waitFirst, o.waitMost = cmp.Or(o.waitFirst, 2*time.Second), cmp.Or(o.waitMost, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Remove == nil {
		o.Remove = func(ctx context.Context, c *checkpoint.Checkpoint) error { return c.Remove(ctx) }
	}
	return nil
}

var (
	errInvalid = errors.New("invalid argument")
	errUnseen  = errors.New("the directory has not been looked at yet")
)

// Drain copies the checkpoints of one directory to one destination. It is safe for concurrent use.
type Drain struct {
	dir      string
	opt      Options
	log      *slog.Logger
	bucket   *s3origin.Writer
	combiner *combiner
	reader   reader
	pace     *pace
	wake     chan struct{}
	sums     atomic.Int32 // how the server shows checksums
	taken    atomic.Bool  // the place was taken over
	counts   struct{ sent, skipped, requests, retries, removed, mended atomic.Int64 }

	mu      sync.Mutex // guards the fields below
	state   *state     // nil until it is locked
	items   map[string]*item
	drafts  []string
	lost    map[string]bool // journals of checkpoints that are gone here
	lostDue time.Time       // when they are looked at, after a failure
	trouble error           // why requests are made again; nil while they work
	since   time.Time       // when that began

	unseen      error     // why the directory was not looked at; nil after a complete look
	unseenSince time.Time // when that began
}

// New makes the drain of a directory to a destination, s3://BUCKET/PREFIX with the options of [s3origin.Parse]. Nothing is asked of the
// server yet, and nothing is changed.
func New(dir, destination string, opt Options) (*Drain, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	source, err := s3origin.Parse(destination)
	if err != nil {
		return nil, err
	}
	bucket, err := s3origin.OpenWriter(source, fetch.Options{Connections: opt.Connections, Guard: opt.Guard})
	if err != nil {
		return nil, err
	}
	d := &Drain{
		dir: abs, opt: opt, log: opt.Log, bucket: bucket, combiner: newCombiner(), wake: make(chan struct{}, 1),
		items: map[string]*item{}, lost: map[string]bool{}, unseen: errUnseen, unseenSince: time.Now(),
	}
	rate := func() int64 { return opt.Rate }
	if opt.Rate == Auto {
		rate = openDisk(abs).bound
	}
	d.pace = &pace{rate: rate}
	return d, nil
}

// Close gives back the descriptors of New and Run. Run has to have ended.
func (d *Drain) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != nil {
		d.state.close()
		d.state = nil
	}
	return d.bucket.Close()
}

// Published has the directory looked at now. name is the published name; only the directory counts.
func (d *Drain) Published(string) {
	select {
	case d.wake <- struct{}{}:
	default: // it will be
	}
}

// volume names the directory among those of all machines.
func (d *Drain) volume() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.volume
}

// open locks the directory. [ErrBusy]: another process has it.
func (d *Drain) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != nil {
		return nil
	}
	s, err := openState(d.dir)
	d.state = s
	return err
}

// Run drains existing and new checkpoints, until ctx ends. Where another process drains the directory, it waits for its end. Errors are in
// the status and in the log.
func (d *Drain) Run(ctx context.Context) {
	for {
		err := d.open()
		if err == nil {
			break
		}
		_ = d.blind(err)
		if pause.For(ctx, d.opt.Poll) != nil {
			return
		}
	}
	_ = d.look() // the status has it
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		d.work(ctx)
	}()
	defer func() { <-done; d.save() }()
	for {
		timer := time.NewTimer(d.opt.Poll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-d.wake:
			timer.Stop()
		case <-timer.C:
		}
		_ = d.look()
		d.save()
	}
}

// work sends one checkpoint after the other, the oldest first, until ctx ends.
func (d *Drain) work(ctx context.Context) {
	_ = d.inspect(ctx) // it ends with ctx alone
	for ctx.Err() == nil {
		if it := d.next(); it != nil {
			_ = d.one(ctx, it) // the status has it
			d.evict(ctx)
			continue
		}
		d.forgetLost(ctx)
		d.evict(ctx)
		if pause.For(ctx, min(d.opt.Poll, 100*time.Millisecond)) != nil {
			return
		}
	}
}

// Once drains the existing checkpoints, and tells by an error that not all of them are remote. Of a checkpoint in parts it waits for
// the others, as long as Patience says. [ErrBusy]: another process drains the directory.
func (d *Drain) Once(ctx context.Context) error {
	if err := d.open(); err != nil {
		return err
	}
	defer d.save()
	if err := d.look(); err != nil {
		return fmt.Errorf("drain %s to %s: %w", d.dir, d.bucket, err)
	}
	d.forgetLost(ctx)
	if err := d.inspect(ctx); err != nil {
		return fmt.Errorf("drain %s to %s: %w", d.dir, d.bucket, cmp.Or(context.Cause(ctx), err))
	}
	began := time.Now()
	for {
		it := d.next()
		if it == nil {
			if err := d.look(); err != nil { // others may have come, or been replaced
				return fmt.Errorf("drain %s to %s: %w", d.dir, d.bucket, err)
			}
			if d.evict(ctx); !d.waiting() || d.opt.Patience > 0 && time.Since(began) > d.opt.Patience {
				break
			}
			if err := pause.For(ctx, 100*time.Millisecond); err != nil {
				return err
			}
			continue
		}
		err := d.one(ctx, it)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrSilent):
			return fmt.Errorf("drain %s to %s: %w", d.dir, d.bucket, err)
		case err == nil:
			began = time.Now()
		}
		d.save()
	}
	return ctx.Err()
}

// waiting tells whether a checkpoint waits for the parts of other nodes, or is to be looked at anew. Those that failed are not waited for.
func (d *Drain) waiting() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, it := range d.items {
		if it.state == Draining || it.state == Local {
			return true
		}
	}
	return false
}

// next gives the oldest checkpoint that is to be sent.
func (d *Drain) next() *item {
	d.mu.Lock()
	defer d.mu.Unlock()
	var due []*item
	for _, it := range d.items {
		if (it.state == Local || it.state == Draining || it.state == Failed && d.opt.Patience == 0) && !it.final && !time.Now().Before(it.due) {
			due = append(due, it)
		}
	}
	if len(due) == 0 {
		return nil
	}
	return slices.MinFunc(due, func(a, b *item) int { return checkpoint.Natural(a.name, b.name) })
}

// one sends a checkpoint, and notes how that ended.
func (d *Drain) one(ctx context.Context, it *item) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.mu.Lock()
	it.state, it.cancel = Draining, cancel
	it.done.Store(0)
	d.mu.Unlock()
	began := time.Now()
	err := d.guarded(ctx, it)
	if err != nil && errors.Is(context.Cause(ctx), ErrLost) {
		err = ErrLost
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	it.cancel = nil
	d.ended(ctx, it, err, time.Since(began))
	return err
}

// guarded sends a checkpoint where that may begin.
func (d *Drain) guarded(ctx context.Context, it *item) error {
	if d.opt.Begin == nil {
		return d.sendItem(ctx, it)
	}
	end, err := d.opt.Begin(it.name)
	if err != nil {
		return fmt.Errorf("%w: %w", errNever, err)
	}
	err = d.sendItem(ctx, it)
	end() // not where it panics: the next daemon finds its mark
	return err
}

// errNever is of a checkpoint that is not tried again.
var errNever = errors.New("it is not drained")

// ended notes how a checkpoint's sending ended. mu is held.
func (d *Drain) ended(ctx context.Context, it *item, err error, took time.Duration) {
	var waits *waitingError
	switch {
	case err == nil:
		it.state, it.why = Remote, ""
		d.log.Info("a checkpoint is remote", "checkpoint", it.name, "bytes", it.size, "seconds", took.Seconds())
	case errors.Is(err, ErrLost):
		if d.items[it.name] == it {
			delete(d.items, it.name)
		}
		d.lost[it.name] = true
		d.log.Info("a checkpoint was removed here before it was remote", "checkpoint", it.name)
	case ctx.Err() != nil: // the next life goes on
		it.state = Local
	case errors.As(err, &waits):
		it.why, it.wait = err.Error(), min(max(2*it.wait, d.opt.waitFirst), d.opt.waitMost)
		it.due = time.Now().Add(it.wait)
	case errors.Is(err, errAgain) && it.again < mostAgain:
		it.again++
		it.why, it.recorded = err.Error(), false
		d.log.Warn("a checkpoint is sent anew", "checkpoint", it.name, "error", err)
	default:
		it.state, it.why, it.recorded = Failed, err.Error(), false
		it.again = 0
		never := errors.Is(err, errNever)
		it.final = never || errors.Is(err, checkpoint.ErrDamaged)
		it.wait = min(max(2*it.wait, d.opt.failedFirst), d.opt.failedMost)
		it.due = time.Now().Add(it.wait)
		if it.final && !never {
			d.lost[it.name] = true // its objects there are of no use
		}
		d.log.Error("a checkpoint is not remote", "checkpoint", it.name, "error", err)
	}
}

// mostAgain is how often a checkpoint is looked at anew before it has failed.
const mostAgain = 3

// sendItem sends a checkpoint.
func (d *Drain) sendItem(ctx context.Context, it *item) error {
	c, err := checkpoint.Open(filepath.Join(d.dir, it.name))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // opened for reading
	text, err := c.ManifestText()
	if err != nil {
		return err
	}
	j, err := d.state.journal(it.name)
	if err != nil {
		return fmt.Errorf("read its journal: %w", err)
	}
	defer j.close()
	want := head{Manifest: digest(text), Destination: d.bucket.String(), Volume: d.state.volume}
	if j.head != want {
		if j.head.Destination == want.Destination && j.head.Volume == want.Volume && j.remote() == nil {
			if err := d.discard(ctx, j); err != nil { // of another checkpoint that had the name
				return err
			}
		}
		_ = j.begin(want) // without a journal there are more questions after a kill
	}
	s := &sending{d: d, it: it, c: c, text: text, j: j}
	if err = s.send(ctx); err != nil && c.Removed() {
		err = ErrLost
	}
	return err
}
