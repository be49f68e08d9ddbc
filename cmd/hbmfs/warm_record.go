package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hbmfs/hbmfs/internal/onmount"
	"github.com/hbmfs/hbmfs/internal/progress"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/internal/touched"
)

// runRecord saves what was read, or what is read from now on.
func (c *warmCommand) runRecord(ctx context.Context) error {
	var r *touched.Record
	var err error
	if c.length > 0 {
		r, err = touched.Watch(ctx, c.paths[0], c.length, func(again bool) {
			if again {
				fmt.Fprintf(c.stderr, "hbmfs: another daemon goes on with %s: recording on\n", c.paths[0])
				return
			}
			fmt.Fprintf(c.stderr, "hbmfs: recording for %v, or until Ctrl-C\n", c.length)
		})
	} else {
		r, err = touched.Take(ctx, c.paths[0])
	}
	if err == nil {
		err = r.Save(c.record)
	}
	if err != nil {
		return err
	}
	if r.Gaps > 0 {
		fmt.Fprintf(c.stderr, "hbmfs: the record has a gap for each daemon of %s that ended meanwhile, %d in all: of what was read in the last second before, and until the next one served. The record ends at %s\n",
			c.paths[0], r.Gaps, r.Until.Format("2006-01-02 15:04:05"))
	}
	if c.asJSON {
		return writeJSON(c.stdout, struct {
			Segments int       `json:"segments"`
			Files    int       `json:"files"`
			Bytes    int64     `json:"bytes"`
			Since    time.Time `json:"since"`
			Complete bool      `json:"complete"`
			Gaps     int       `json:"gaps"`
		}{len(r.Touches), len(r.Files), r.Bytes(), r.Since, r.Complete, r.Gaps})
	}
	fmt.Fprintf(c.stdout, "%s segments of %s files, %s, read since %s\n", size.Grouped(int64(len(r.Touches))), size.Grouped(int64(len(r.Files))),
		size.Decimal(r.Bytes()), r.Since.Format("2006-01-02 15:04:05"))
	if !r.Complete && r.Gaps == 0 {
		fmt.Fprintf(c.stderr, "hbmfs: more was read than a record has room for: it has the first %s segments\n", size.Grouped(int64(len(r.Touches))))
	}
	return nil
}

// runReplay brings what a record has.
func (c *warmCommand) runReplay(ctx context.Context) error {
	began := time.Now()
	r, err := touched.Load(c.replay)
	if err != nil {
		return err
	}
	bar := progress.New(c.stderr, "replaying", r.Bytes(), true)
	p := touched.NewReplay(r, c.paths[0], int64(c.rate), bar.Add)
	over := make(chan error, 1)
	go func() { over <- p.Run(ctx) }()
	select {
	case err = <-over:
	case <-ctx.Done(): // a question to a daemon that does not answer ends with this process
		err = onmount.ErrInterrupted
	}
	bar.Close()
	done := p.Summary()
	done.Seconds = time.Since(began).Seconds()
	if c.asJSON {
		err = errors.Join(err, writeJSON(c.stdout, done))
	} else {
		c.printReplay(&done)
	}
	if err == nil && done.Left > 0 {
		return fmt.Errorf("%s did not come: the source does not give them, or the cache has no room that it may take; .hbmfs/status of the mount says more", size.Decimal(done.Left))
	}
	return err
}

func (c *warmCommand) printReplay(d *touched.Summary) {
	fmt.Fprintf(c.stdout, "%s segments, %s, in %.1f s\n", size.Grouped(int64(d.Segments)), size.Decimal(d.Bytes), d.Seconds)
	printBytes(c.stdout, []bytesOf{
		{d.Local, "were in the cache already"},
		{d.Fetched, "were fetched, at " + size.Decimal(int64(float64(d.Fetched)/max(d.Seconds, 1e-6))) + "/s"},
		{d.Left, "did not come"},
		{d.Beyond, "have no room in the cache (hbmfs mount --cache-size)"},
		{d.Other, "are of files that have another version now"},
		{d.Missing, "are of files that are not there"},
		{d.Denied, "are of files that you may not read"},
		{d.Unkept, "are of files that the cache does not keep"},
	})
}
