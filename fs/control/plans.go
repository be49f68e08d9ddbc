package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/text/varint"
	"github.com/hbmfs/hbmfs/layout"
)

// Ranges that readers announced by PREFETCH and have not read yet are saved a few times a second. So the next daemon goes on fetching it.
// Plans of connections end with them.

const (
	plansOften = 300 * time.Millisecond // between two saves
	plansMax   = 8 << 20                // bytes of one save; a longer one is cut
)

// plansBook is a file of two places, which are written by turns: one that a kill has cut short leaves the other. A place has a number that
// grows, a length, CRC-32C of both and of the bytes (u64, u32, u32, little-endian), and the bytes.
type plansBook struct {
	file *os.File
	turn uint64 // of the last save
	last []byte // that was saved
}

const plansHead = 16

func newPlansBook() (*plansBook, error) {
	f, err := handover.NewMemory("plans")
	return &plansBook{file: f}, err
}

func (b *plansBook) place(turn uint64) int64 { return int64(turn%2) * (plansHead + plansMax) }

func plansSum(head, p []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(head, table), table, p)
}

// save writes plans, where they have changed.
func (b *plansBook) save(p []byte) error {
	if bytes.Equal(p, b.last) {
		return nil
	}
	b.last = bytes.Clone(p)
	b.turn++
	head := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, b.turn), uint32(len(p)))
	_, err := b.file.WriteAt(append(binary.LittleEndian.AppendUint32(head, plansSum(head, p)), p...), b.place(b.turn))
	return err
}

// load reads the last plans that were saved whole, nil where there are none.
func (b *plansBook) load() (plans []byte) {
	for turn := range uint64(2) {
		head := make([]byte, plansHead)
		if _, err := b.file.ReadAt(head, b.place(turn)); err != nil {
			continue
		}
		number, length := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint32(head[8:])
		if length > plansMax || number <= b.turn {
			continue
		}
		p := make([]byte, length)
		if _, err := b.file.ReadAt(p, b.place(turn)+plansHead); err != nil && !errors.Is(err, io.EOF) {
			continue
		}
		if plansSum(head[:12], p) == binary.LittleEndian.Uint32(head[12:]) {
			b.turn, plans = number, p
		}
	}
	return plans
}

// savePlans saves plans until ctx ends.
func (s *Server) savePlans(ctx context.Context) {
	if s.plans == nil {
		return
	}
	often := time.NewTicker(plansOften)
	defer often.Stop()
	for {
		select {
		case <-often.C:
		case <-ctx.Done():
			return
		}
		var w varint.Writer
		s.opt.Cache.Planned(func(reader any, runs []layout.Run) { s.recordPlan(&w, reader, runs) })
		if err := s.plans.save(w.B); err != nil {
			s.opt.Log.Warn("what readers have planned ends with this daemon", "error", err)
			return
		}
	}
}

// recordPlan writes the plan for a file: its node, its user, how many runs, and of each the object and the range.
func (s *Server) recordPlan(w *varint.Writer, reader any, runs []layout.Run) {
	r, ok := reader.(planner)
	node, isFile := r.by.(int)
	if !ok || !isFile || len(runs) == 0 {
		return
	}
	var p varint.Writer
	var of *layout.Object // of place i, as most runs are of the object of the run before
	i, count := 0, 0
	for _, run := range runs {
		if run.Object != of {
			at, found := s.opt.Listing.Index(run.Object.Name)
			if !found || s.opt.Listing.Objects[at] != run.Object {
				continue
			}
			of, i = run.Object, at
		}
		if len(w.B)+len(p.B) > plansMax-1<<10 {
			break
		}
		p.Uint(uint64(i), uint64(run.Offset), uint64(run.Length))
		count++
	}
	w.Uint(uint64(node), uint64(r.uid), uint64(count))
	w.B = append(w.B, p.B...)
}

// GoOnWithPlans plans again the ranges that an earlier daemon has saved, for files that are open.
func (s *Server) GoOnWithPlans(open func() map[int]bool) {
	f := s.opt.Life.Took(keptPlans)
	if f == nil || s.opt.Cache == nil {
		return
	}
	s.plans = &plansBook{file: f}
	still := open()
	for r := (varint.Reader{B: s.plans.load()}); len(r.B) > 0 && !r.Short; {
		node, user, count := int(r.Uint()), uint32(r.Uint()), r.Uint()
		var runs []layout.Run
		for range count {
			i, from, length := r.Uint(), int64(r.Uint()), int64(r.Uint())
			if r.Short || i >= uint64(len(s.opt.Listing.Objects)) {
				return
			}
			if o := s.opt.Listing.Objects[i]; from >= 0 && length > 0 && from <= o.Size-length {
				runs = append(runs, layout.Run{Object: o, Offset: from, Length: length, Stride: length, Count: 1})
			}
		}
		reader := planner{user, node}
		if still[node] && len(runs) > 0 && s.opt.Cache.Plan(reader, runs) {
			s.prefetch.note(reader)
		}
	}
}
