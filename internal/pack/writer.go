package pack

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hbmfs/hbmfs/internal/pack/corpus"
)

// writer splits documents into training and validation and hands them to the streams. One goroutine uses it.
type writer struct {
	plan   *plan
	train  *stream
	val    *stream
	cur    *stream // of the current document
	mds    mdsIndex
	out    *output
	seen   int64 // documents that have ended
	result Result

	repaired bool // the current document was

	// Of the state that is saved, see state.go.
	settings []setting
	inputs   string
	at       corpus.Position // behind the last batch
	read     int64
	began    time.Time
	saved    time.Time
	before   float64 // seconds that earlier runs took
	clean    bool    // everything before at is written, and nothing else
	mayLeave bool
}

func (p *plan) newWriter(out *output) *writer {
	w := &writer{plan: p, out: out}
	split := func(name string) *stream {
		return &stream{limit: p.limit, byDocument: p.rules.byDocument, open: func(index int) (shard, error) {
			return w.openShard(name, index)
		}}
	}
	w.train, w.val = split("train"), split("val")
	w.cur = w.pick()
	return w
}

// openShard starts the shard of the given index, under the name that the format's own writers give it.
func (w *writer) openShard(split string, index int) (shard, error) {
	p := w.plan
	switch p.Format {
	case Megatron:
		name := p.Name + "_text_document"
		if p.limit > 0 {
			name = fmt.Sprintf("%s_%05d_text_document", p.Name, index)
		}
		return newMegatron(w.out, name, p.dtype)
	case LLMC:
		return newFlat(w.out, fmt.Sprintf("%s_%s_%06d.bin", p.Name, split, index), p.dtype, llmcHeader(p.dtype))
	case NanoGPT:
		return newFlat(w.out, split+".bin", p.dtype, noHeader)
	case NPY:
		return newFlat(w.out, fmt.Sprintf("%s_%05d.npy", p.Name, index), p.dtype, npyHeader(p.dtype))
	case MDS:
		return newMDS(w.out, &w.mds, fmt.Sprintf("shard.%05d.mds", index), p.dtype, p.SampleTokens)
	}
	panic("pack: internal error: no writer for format " + p.Format)
}

// pick returns the stream of the next document. Validation documents are spread evenly: one whenever the fraction of
// the documents so far passes a whole number.
func (w *writer) pick() *stream {
	f := w.plan.ValFraction
	if math.Floor(float64(w.seen+1)*f) > math.Floor(float64(w.seen)*f) {
		return w.val
	}
	return w.train
}

// SaveEvery is how often the state is saved, where the options do not say.
const SaveEvery = 20 * time.Second

// begin goes on with an interrupted run, or begins anew.
func (w *writer) begin(restart bool) error {
	s, err := readState(w.out.dir)
	if s != nil {
		w.out.prefix = s.Prefix
	}
	if restart {
		if err := w.out.forget(tempPrefix); err != nil {
			return fmt.Errorf("remove the state of the interrupted pack: %w", err)
		}
		s, err = nil, nil
	}
	if err != nil {
		return err
	}
	w.saved, w.clean, w.mayLeave = w.began, true, true
	if s == nil {
		return w.out.clear(w.plan.Force)
	}
	if why := s.matches(w.settings, w.inputs); why != "" {
		return fmt.Errorf("an interrupted pack is in %s, and this one cannot go on with it: %s. Repeat its command, or use --restart to begin anew", w.out.dir, why)
	}
	w.out.saved = true
	return w.resume(s)
}

// leaveState reports whether the state of a run that failed is kept, and brings it up to date where that can be done.
func (w *writer) leaveState() bool {
	if !w.out.saved || !w.mayLeave || w.out.swaps { // an earlier dataset gets its names back
		return false
	}
	if w.clean && w.save() != nil {
		return true // the state before is as good
	}
	w.out.keep()
	return true
}

// batch writes a tokenized batch.
func (w *writer) batch(ctx context.Context, b *batch) error {
	w.clean = false
	for _, l := range b.leftOut {
		w.result.leave(LeftOut{l.Reason, l.Name, 1, l.Size})
	}
	start := 0
	for _, part := range b.parts {
		tokens := b.tokens[start:part.end]
		if len(tokens) > 0 && w.cur.inDoc == 0 {
			if err := w.cur.write(ctx, w.plan.bos); err != nil {
				return err
			}
		}
		if err := w.cur.write(ctx, tokens); err != nil {
			return err
		}
		start = part.end
		w.repaired = w.repaired || part.repaired
		if part.more {
			continue
		}
		if w.repaired {
			w.result.Repaired++
			w.repaired = false
		}
		if err := w.endDocument(ctx); err != nil {
			return err
		}
	}
	if b.next == nil {
		return nil
	}
	w.at, w.read, w.clean = *b.next, b.read, true
	every := w.plan.SaveEvery
	if every <= 0 {
		every = SaveEvery
	}
	if time.Since(w.saved) < every {
		return nil
	}
	w.saved = time.Now()
	return w.save()
}

func (w *writer) endDocument(ctx context.Context) error {
	if w.cur.inDoc == 0 {
		w.result.Empty++ // a document without text gets no end-of-text, as in Megatron's preprocess_data.py
		return nil
	}
	if err := w.cur.write(ctx, w.plan.eot); err != nil {
		return err
	}
	if err := w.cur.endDocument(ctx); err != nil {
		return err
	}
	if w.seen++; w.cur == w.val {
		w.result.HeldOut++
	}
	w.cur = w.pick()
	return nil
}

// close finishes the shards and the files beside them.
func (w *writer) close(ctx context.Context) error {
	for _, s := range []*stream{w.train, w.val} {
		if err := s.close(ctx); err != nil {
			return err
		}
	}
	if w.plan.final != nil {
		return nil // a part may be empty
	}
	if w.seen == 0 {
		w.mayLeave = false
		return errors.New("the sources hold no documents with tokens: nothing was written")
	}
	if w.plan.Format != MDS {
		return nil
	}
	if len(w.mds.Shards) == 0 {
		return fmt.Errorf("the sources hold fewer tokens than one sample of %d: nothing was written", w.plan.SampleTokens)
	}
	return w.mds.write(ctx, w.out)
}
