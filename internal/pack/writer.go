package pack

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// batch writes a tokenized batch.
func (w *writer) batch(ctx context.Context, b *batch) error {
	w.result.Repaired += b.repaired
	start := 0
	for _, part := range b.parts {
		if err := w.cur.write(ctx, b.tokens[start:part.end]); err != nil {
			return err
		}
		start = part.end
		if part.more {
			continue
		}
		if err := w.endDocument(ctx); err != nil {
			return err
		}
	}
	return nil
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
	if w.seen == 0 {
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
