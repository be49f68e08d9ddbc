package main

import (
	"fmt"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/awake"
)

// keepAwake has the mount keep idle processors awake, if --awake asks for it. Where that is not possible the mount says so.
func (c *mountCommand) keepAwake(opt *fs.Options) {
	if !c.awake {
		return
	}
	p, err := awake.New()
	if err != nil {
		opt.Notes = append(opt.Notes, fmt.Sprintf("--awake has no effect: %v", err))
		return
	}
	opt.Opened = p.Used
}
