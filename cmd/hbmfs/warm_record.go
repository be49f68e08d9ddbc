package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hbmfs/hbmfs/internal/commands/warm/touched"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// runRecord saves the reads so far, or the reads from now on.
func (c *warmCommand) runRecord(ctx context.Context, mount string) error {
	var r *touched.Record
	var err error
	if c.length > 0 {
		r, err = touched.Watch(ctx, mount, c.length, func(again bool) {
			if again {
				fmt.Fprintf(c.stderr, "hbmfs: another daemon goes on with %s: recording on\n", mount)
				return
			}
			fmt.Fprintf(c.stderr, "hbmfs: recording for %v, or until Ctrl-C\n", c.length)
		})
	} else {
		r, err = touched.Take(ctx, mount)
	}
	if err == nil {
		err = r.Save(c.record)
	}
	if err != nil {
		return err
	}
	if r.Gaps > 0 {
		fmt.Fprintf(c.stderr, "hbmfs: the record has a gap for each daemon of %s that ended meanwhile, %d in all: of what was read in the last second before, and until the next one served. The record ends at %s\n",
			mount, r.Gaps, r.Until.Format(time.DateTime))
	}
	err = c.print(struct {
		Segments int       `json:"segments"`
		Files    int       `json:"files"`
		Bytes    int64     `json:"bytes"`
		Since    time.Time `json:"since"`
		Complete bool      `json:"complete"`
		Gaps     int       `json:"gaps"`
	}{len(r.Touches), len(r.Files), r.Bytes(), r.Since, r.Complete, r.Gaps}, func() {
		fmt.Fprintf(c.stdout, "%s segments of %s files, %s, read since %s\n", size.Grouped(int64(len(r.Touches))), size.Grouped(int64(len(r.Files))),
			size.Decimal(r.Bytes()), r.Since.Format(time.DateTime))
	})
	if !c.asJSON && !r.Complete && r.Gaps == 0 {
		fmt.Fprintf(c.stderr, "hbmfs: more was read than a record has room for: it has the first %s segments\n", size.Grouped(int64(len(r.Touches))))
	}
	return err
}

// runReplay brings the segments of a record.
func (c *warmCommand) runReplay(ctx context.Context, mount string) error {
	began := time.Now()
	r, err := touched.Load(c.replay)
	if err != nil {
		return err
	}
	add, end := c.bar("replaying", r.Bytes(), true)
	p := touched.NewReplay(r, mount, int64(c.rate), add)
	err = untilInterrupted(ctx, p.Run)
	end()
	done := p.Summary()
	done.Seconds = time.Since(began).Seconds()
	err = errors.Join(err, c.print(done, func() { c.printReplay(&done) }))
	if err == nil && done.Left > 0 {
		return fmt.Errorf("%s did not come: the source does not give them, or the cache has no room that it may take; .hbmfs/status of the mount says more", size.Decimal(done.Left))
	}
	return err
}

func (c *warmCommand) printReplay(d *touched.Summary) {
	fmt.Fprintf(c.stdout, "%s segments, %s, in %.1f s\n", size.Grouped(int64(d.Segments)), size.Decimal(d.Bytes), d.Seconds)
	printBytes(c.stdout, []bytesOf{
		{d.Local, "were in the cache already"},
		{d.Fetched, "were fetched, at " + perSecond(d.Fetched, d.Seconds)},
		{d.Left, "did not come"},
		{d.Beyond, "have no room in the cache (hbmfs mount --cache-size)"},
		{d.Other, "are of files that have another version now"},
		{d.Missing, "are of files that are not there"},
		{d.Denied, "are of files that you may not read"},
		{d.Unkept, "are of files that the cache does not keep"},
	})
}
