package touched

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

const (
	atOnce     = 4                // messages whose bytes are on their way
	perFrame   = 64               // touches of a message
	largest    = 64 << 20         // bytes of a touch in a message: progress is seen by them
	perPlan    = 8192             // touches of a connection: a plan has room for 16,384 reads
	stuckTime  = 20 * time.Second // without a byte: ask again, on another connection
	mostStuck  = 3                // times
	settleTime = 30 * time.Second // for the cache to sync new segments
)

// Summary counts a replay's segments, and is the JSON that --json prints. Bytes are the record's.
type Summary struct {
	Segments int     `json:"segments"`
	Bytes    int64   `json:"bytes"`
	Local    int64   `json:"local"`         // were in the cache before
	Fetched  int64   `json:"fetched"`       // came now
	Left     int64   `json:"left"`          // did not come
	Beyond   int64   `json:"beyond"`        // have no room in the cache
	Other    int64   `json:"other_version"` // of files that have another version now
	Missing  int64   `json:"missing"`       // of files that are not there
	Denied   int64   `json:"denied"`        // of files that this user may not read
	Unkept   int64   `json:"not_cached"`    // of files that the mount's cache does not keep
	Seconds  float64 `json:"seconds"`
}

// Replay brings a record's bytes into the cache of a mount.
type Replay struct {
	record *Record
	mount  string
	rate   int64         // bytes per second, 0 for no limit
	moved  func(n int64) // hears of bytes that are here, or never will be

	conn     *control.Client
	sent     int      // touches, on this connection
	frames   []*frame // to be sent
	under    []*frame // on their way
	settling []*frame // that were here in the end
	began    time.Time
	last     time.Time // something came, or waited for the rate
	paced    int64

	mu   sync.Mutex // guards the fields below, and calls of moved
	done Summary
}

// frame is a message.
type frame struct {
	control.Bring
	bytes    int64 // of all touches
	could    int64 // of files that can come
	local    int64 // that were here when it was first asked for
	here     int64
	known    bool // could and local are
	sent     bool // on this connection
	settling bool // it was here, and not synced
}

// NewReplay makes a replay. rate is bytes per second, 0 for no limit.
func NewReplay(r *Record, mount string, rate int64, moved func(n int64)) *Replay {
	return &Replay{record: r, mount: mount, rate: rate, moved: moved, done: Summary{Segments: len(r.Touches), Bytes: r.Bytes()}}
}

// Summary is how far it has come.
func (p *Replay) Summary() Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

func (p *Replay) count(n int64, sums ...*int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sum := range sums {
		*sum += n
	}
	p.moved(n)
}

// Run brings everything, in order. It returns when all is here, or no more of it comes.
func (p *Replay) Run(ctx context.Context) error {
	root, err := control.Root(p.mount)
	if err != nil {
		return err
	}
	p.mount = root
	if p.conn, err = control.Dial(ctx, root, client); err != nil {
		return err
	}
	defer func() {
		if p.conn != nil {
			_ = p.conn.Close() // which ends the plan
		}
	}()
	cache, err := p.conn.Bring(ctx, &control.Bring{Ask: true})
	if err != nil {
		return older(err)
	}
	p.cut(cache.Limit)
	p.began = time.Now()
	p.last = p.began
	tries := 0
	for len(p.frames)+len(p.under) > 0 {
		came, err := p.step(ctx)
		switch {
		case err != nil:
			return err
		case came:
			p.last, tries = time.Now(), 0
			continue
		case time.Since(p.last) > stuckTime:
			if tries++; tries >= mostStuck {
				p.giveUp()
				return nil
			}
			p.last = time.Now()
			p.disconnect()
		}
		if err := pause.For(ctx, pause.Look); err != nil {
			return err
		}
	}
	if err := p.settle(ctx); err != nil {
		return err
	}
	return p.refuse()
}

// settle waits until the cache has synced the new segments: only synced ones outlive the mount.
func (p *Replay) settle(ctx context.Context) error {
	for end := time.Now().Add(settleTime); len(p.settling) > 0 && p.conn != nil && time.Now().Before(end); {
		said, err := p.conn.Bring(ctx, &control.Bring{Ask: true, Touches: p.settling[0].Touches})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return nil // the daemon has gone: the next one has the synced segments
		case said.Settling == 0:
			p.settling = p.settling[1:]
			continue
		}
		if err := pause.For(ctx, pause.Look); err != nil {
			return err
		}
	}
	return nil
}

// refuse says that nothing of a record could come, where that is so.
func (p *Replay) refuse() error {
	d := p.Summary()
	if d.Bytes > 0 && d.Other+d.Missing == d.Bytes {
		return errors.New("the record is of another dataset, or of another version of it: no file of it is in this mount as it was. Record a job on this version")
	}
	return nil
}

// cut makes messages of the touches that a cache has room for.
func (p *Replay) cut(limit int64) {
	chunk, most := int64(largest), perFrame
	if p.rate > 0 { // one waits for the other
		chunk, most = min(chunk, max(1<<20, p.rate/4)), 1
	}
	var f *frame
	places := map[int64]uint32{}
	for _, t := range p.record.Touches {
		if limit -= t[2]; limit < 0 {
			p.count(t[2], &p.done.Beyond)
			continue
		}
		of := p.record.Files[t[0]]
		o := control.Touched{Name: of.Name, Version: of.Version, Size: of.Size}
		for off, end := t[1], t[1]+t[2]; off < end; off += chunk {
			at, known := places[t[0]]
			if f == nil || len(f.Touches.Touches) >= most || !f.Room(&o, !known) {
				f, known = &frame{}, false
				clear(places)
				p.frames = append(p.frames, f)
			}
			if !known {
				at = uint32(len(f.Objects))
				places[t[0]] = at
				f.Objects = append(f.Objects, o)
			}
			n := min(chunk, end-off)
			f.Touches.Touches = append(f.Touches.Touches, control.Touch{Object: at, Range: control.Range{Offset: off, Length: n}})
			f.bytes += n
		}
	}
}

// step asks for segments within its bound, and looks how much of the first message has come. It tells whether anything
// has.
func (p *Replay) step(ctx context.Context) (came bool, err error) {
	if p.conn == nil {
		if err := p.connect(ctx); err != nil {
			return false, err
		}
	}
	err = p.ask(ctx)
	if err == nil && p.conn != nil && len(p.under) > 0 {
		came, err = p.look(ctx, p.under[0])
	}
	var refusal *control.Refusal
	switch {
	case err == nil || ctx.Err() != nil:
		return came, err
	case errors.As(err, &refusal) && errors.Is(refusal, syscall.EAGAIN): // the plan is full
		if len(p.under) == 0 || !p.under[0].sent {
			p.disconnect()
		}
		return came, nil
	case errors.As(err, &refusal):
		return came, err
	}
	p.disconnect() // the daemon has gone, and another goes on
	return came, nil
}

// connect waits for the next daemon where there is none now.
func (p *Replay) connect(ctx context.Context) error {
	for end := time.Now().Add(control.NextDaemonTime); ; {
		c, err := control.Dial(ctx, p.mount, client)
		if err == nil {
			p.conn = c
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		if err := pause.For(ctx, pause.Look); err != nil {
			return err
		}
	}
}

func (p *Replay) disconnect() {
	if p.conn != nil {
		_ = p.conn.Close() // the plan ends, and its segments stay
	}
	p.conn, p.sent = nil, 0
	for _, f := range p.under {
		f.sent = false
	}
}

// ask has as many messages on their way as shall be.
func (p *Replay) ask(ctx context.Context) error {
	for len(p.under) < atOnce && len(p.frames) > 0 {
		p.under, p.frames = append(p.under, p.frames[0]), p.frames[1:]
	}
	for _, f := range p.under {
		if f.sent {
			continue
		}
		if p.sent >= perPlan {
			if f == p.under[0] { // all before it is here
				p.disconnect()
			}
			return nil
		}
		if !f.known {
			if err := p.pace(ctx, f.bytes); err != nil {
				return err
			}
		}
		said, err := p.conn.Bring(ctx, &f.Bring)
		if err != nil {
			return err
		}
		f.sent = true
		p.sent += len(f.Touches.Touches)
		p.learn(f, said)
	}
	return nil
}

// learn takes the first answer of a message in.
func (p *Replay) learn(f *frame, said control.Brought) {
	if f.known {
		return
	}
	f.known, f.could, f.local, f.here = true, said.Bytes, said.Here, said.Here
	p.count(said.Here, &p.done.Local)
	for _, t := range f.Touches.Touches {
		switch said.Errnos[t.Object] {
		case 0:
		case syscall.ESTALE:
			p.count(t.Length, &p.done.Other)
		case syscall.EACCES, syscall.EPERM:
			p.count(t.Length, &p.done.Denied)
		case syscall.EOPNOTSUPP:
			p.count(t.Length, &p.done.Unkept)
		default:
			p.count(t.Length, &p.done.Missing)
		}
	}
}

// look asks how much of a message has come.
func (p *Replay) look(ctx context.Context, f *frame) (came bool, err error) {
	if !f.known {
		return false, nil
	}
	if f.here < f.could {
		q := control.Bring{Ask: true, Touches: f.Touches}
		said, err := p.conn.Bring(ctx, &q)
		if err != nil {
			return false, err
		}
		f.settling = said.Settling > 0
		if said.Here > f.here {
			p.count(said.Here-f.here, &p.done.Fetched)
			f.here, came = said.Here, true
		}
	}
	if f.here >= f.could {
		p.under, came = p.under[1:], true
		if f.settling {
			p.settling = append(p.settling, f)
		}
	}
	return came, nil
}

// giveUp counts bytes that do not come.
func (p *Replay) giveUp() {
	for _, f := range append(p.under, p.frames...) {
		left := f.could - f.here
		if !f.known {
			left = f.bytes
		}
		p.count(left, &p.done.Left)
	}
	p.under, p.frames = nil, nil
}

// pace waits until n bytes more are within the rate.
func (p *Replay) pace(ctx context.Context, n int64) error {
	if p.rate == 0 {
		return ctx.Err()
	}
	p.paced += n
	defer func() { p.last = time.Now() }()
	return pause.For(ctx, time.Until(p.began.Add(time.Duration(float64(p.paced)/float64(p.rate)*float64(time.Second)))))
}
