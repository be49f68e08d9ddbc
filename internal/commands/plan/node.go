package plan

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"

	"go.yaml.in/yaml/v3"

	"github.com/hbmfs/hbmfs/internal/text/size"
)

// Example is a description with every key, of the host whose figures validate the model.
//
//go:embed example.yaml
var Example []byte

// Description is a YAML file: nodes, and jobs on them.
type Description struct {
	Nodes []Node `yaml:"nodes"`
	Jobs  []Job  `yaml:"jobs"`
}

// Node is a computer with GPUs. Its links form a tree whose root is the host memory that the data is in.
type Node struct {
	Name         string    `yaml:"name"`
	Source       string    `yaml:"source"`         // where the figures come from
	PricePerHour float64   `yaml:"price_per_hour"` // of the whole node; 0 leaves costs out
	Currency     string    `yaml:"currency"`       // of the price; USD where it is empty
	Memory       float64   `yaml:"memory_gb_per_s"`
	Links        []Link    `yaml:"links"`
	GPUs         []GPU     `yaml:"gpus"`
	Storage      []Storage `yaml:"storage"`
	Threads      int       `yaml:"threads"` // of staged, for each GPU; 0 for hbmfs's own number
	Notes        []string  `yaml:"-"`
}

// Wire is a link's rate: of PCIe by generation and lanes, or as it is.
type Wire struct {
	Gen         int     `yaml:"gen"`
	Lanes       int     `yaml:"lanes"`
	GBps        float64 `yaml:"gb_per_s"`
	Uncertainty float64 `yaml:"uncertainty"` // a part of the rate; 0 takes the default
}

// Link is a switch's uplink, a root port, or a link between sockets. All devices below share it.
type Link struct {
	Name       string  `yaml:"name"`
	Parent     string  `yaml:"parent"` // a link's name, or nothing for host memory
	Contention float64 `yaml:"contention"`
	Wire       `yaml:",inline"`
}

// GPU is one GPU and its own link.
type GPU struct {
	Name   string  `yaml:"name"`
	Parent string  `yaml:"parent"`
	Weight float64 `yaml:"weight"` // its share where stages arbitrate; 0 means 1
	Wire   `yaml:",inline"`
}

// Storage is a drive, or a storage service; then its parent is the NIC, a link. Data is spread evenly over all of them.
type Storage struct {
	Name      string  `yaml:"name"`
	Parent    string  `yaml:"parent"`
	Write     float64 `yaml:"write_gb_per_s"`
	LatencyUS float64 `yaml:"latency_us"`
	Direct    bool    `yaml:"direct"` // DMA to the GPU was proven (hbmfs check), or is assumed
	Wire      `yaml:",inline"`
}

// The kinds of jobs.
const (
	Epoch      = "epoch"
	Checkpoint = "checkpoint"
	Weights    = "weights"
)

// Job is something to read or write.
type Job struct {
	Name     string  `yaml:"name" json:"name"`
	Kind     string  `yaml:"kind" json:"kind"`
	Size     Size    `yaml:"size" json:"bytes"`
	Cached   bool    `yaml:"cached" json:"cached"`       // the page cache holds it
	Passes   int     `yaml:"passes" json:"passes"`       // of an epoch; 0 means 1
	Copies   bool    `yaml:"copies" json:"copies"`       // weights: every GPU reads all of it, instead of its part
	Compute  Seconds `yaml:"compute" json:"compute_s"`   // of an epoch: the GPUs' computing meanwhile
	Interval Seconds `yaml:"interval" json:"interval_s"` // between checkpoints
	Notice   Seconds `yaml:"notice" json:"notice_s"`     // of a checkpoint: from a spot preemption's notice to the end
	MTBF     Seconds `yaml:"mtbf" json:"mtbf_s"`         // mean time between preemptions or failures
}

const (
	mostDescription = 1 << 20
	mostThings      = 64 // GPUs, links, storage devices, nodes, jobs
	mostRate        = 1e5
	memoryDefault   = 245 // GB/s: 0.8 of the 307 of 8 channels of DDR5-4800, one socket
)

// Parse reads a description. An unknown, missing or impossible value is an error that names its place and the fix.
func Parse(r io.Reader) (*Description, error) {
	text, err := io.ReadAll(io.LimitReader(r, mostDescription+1))
	if err != nil {
		return nil, fmt.Errorf("read the description: %w", err)
	}
	if len(text) > mostDescription {
		return nil, errors.New("a description has at most 1 MiB: cut it into several")
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var d Description
	if err := decoder.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the description is not understood, compare it with hbmfs plan --example: %w", err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the description goes on behind its first document: take the line --- out, several nodes go in one list")
	}
	if len(d.Nodes) > mostThings || len(d.Jobs) > mostThings {
		return nil, fmt.Errorf("a description has at most %d nodes and %d jobs: cut it into several", mostThings, mostThings)
	}
	for i := range d.Nodes {
		if err := d.Nodes[i].check(); err != nil {
			return nil, fmt.Errorf("node %q: %w", d.Nodes[i].Name, err)
		}
	}
	for i := range d.Jobs {
		if err := d.Jobs[i].check(); err != nil {
			return nil, fmt.Errorf("job %q: %w", d.Jobs[i].Name, err)
		}
	}
	return &d, nil
}

// check completes a node with defaults and finds its first mistake.
func (n *Node) check() error {
	if n.Name == "" {
		return errors.New("it has no name: add name")
	}
	if len(n.GPUs) == 0 || len(n.GPUs) > mostThings || len(n.Links) > mostThings || len(n.Storage) > mostThings {
		return fmt.Errorf("it has %d GPUs, %d links and %d storage devices: give 1 to %d GPUs and at most %d of the others", len(n.GPUs), len(n.Links), len(n.Storage), mostThings, mostThings)
	}
	if n.Memory == 0 {
		n.Memory = memoryDefault
	}
	if !between(n.Memory, 0.01, mostRate) || n.Threads < 0 || n.Threads > 256 || !between(n.PricePerHour, 0, 1e6) {
		return errors.New("give memory_gb_per_s from 0.01 to 100000, threads up to 256 and price_per_hour from 0 to 1000000")
	}
	if err := n.checkLinks(); err != nil {
		return err
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.Weight == 0 {
			g.Weight = 1
		}
		if !between(g.Weight, 0.01, 100) {
			return fmt.Errorf("GPU %q: weight is 0.01 to 100", g.Name)
		}
		if err := n.joined("GPU "+g.Name, g.Parent, g.Wire); err != nil {
			return err
		}
	}
	for i := range n.Storage {
		s := &n.Storage[i]
		if err := n.joined("storage "+s.Name, s.Parent, s.Wire); err != nil {
			return err
		}
		if s.Write == 0 {
			s.Write = s.rate(pcieDefault)
		}
		if !between(s.Write, 0.01, mostRate) || !between(s.LatencyUS, 0, 1e7) {
			return fmt.Errorf("storage %q: write_gb_per_s is 0.01 to 100000, latency_us 0 to 10000000", s.Name)
		}
	}
	return nil
}

func (n *Node) checkLinks() error {
	for i, l := range n.Links {
		if l.Name == "" || n.find(l.Name) != i {
			return fmt.Errorf("link %d has no name of its own: add name", i+1)
		}
		if err := n.joined(l.Name, l.Parent, l.Wire); err != nil {
			return err
		}
		if !between(l.Contention, 0, 10) {
			return fmt.Errorf("link %q: contention is 0 to 10", l.Name)
		}
		if _, err := n.above(l.Parent); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) joined(name, parent string, w Wire) error {
	if parent != "" && n.find(parent) < 0 {
		return fmt.Errorf("%q has the parent %q, which is no link: add the link, or leave parent out for host memory", name, parent)
	}
	if !between(w.Uncertainty, 0, 0.9) {
		return fmt.Errorf("%q: uncertainty is a part, 0 to 0.9", name)
	}
	if w.GBps == 0 && w.raw() > 0 || w.Gen == 0 && w.Lanes == 0 && between(w.GBps, 0.01, mostRate) {
		return nil
	}
	return fmt.Errorf("%q has no usable rate: give gen (1 to 6) and lanes (1 to 16), or gb_per_s (0.01 to 100000)", name)
}

// between says whether a number is one, and in a range.
func between(x, low, high float64) bool { return x >= low && x <= high }

// find gives the index of a link, or -1.
func (n *Node) find(name string) int {
	for i := range n.Links {
		if n.Links[i].Name == name {
			return i
		}
	}
	return -1
}

// above gives the links from a parent up to host memory.
func (n *Node) above(parent string) ([]int, error) {
	var route []int
	for parent != "" {
		i := n.find(parent)
		if i < 0 || len(route) > len(n.Links) {
			return nil, fmt.Errorf("the parents of link %q go in a circle: let one of them end at host memory", parent)
		}
		route = append(route, i)
		parent = n.Links[i].Parent
	}
	return route, nil
}

// pcieDefault is the usable part of a PCIe link's raw rate: 55.2 of 63.0 GB/s, a pinned copy to an H200.
const pcieDefault = 55.2 / 63.015

// raw is the rate of a PCIe link after its line coding, in GB/s, and 0 where there is no such link.
func (w Wire) raw() float64 {
	switch w.Lanes {
	case 1, 2, 4, 8, 12, 16:
	default:
		return 0
	}
	switch {
	case w.Gen == 1 || w.Gen == 2:
		return 2.5 * float64(w.Gen) * 8 / 10 / 8 * float64(w.Lanes)
	case w.Gen >= 3 && w.Gen <= 5:
		return 8 * math.Pow(2, float64(w.Gen-3)) * 128 / 130 / 8 * float64(w.Lanes)
	case w.Gen == 6:
		return 64. * 242 / 256 / 8 * float64(w.Lanes)
	}
	return 0
}

// rate is a link's rate at an efficiency of PCIe.
func (w Wire) rate(pcie float64) float64 {
	if w.GBps > 0 {
		return w.GBps
	}
	return w.raw() * pcie
}

func (j *Job) check() error {
	if j.Passes == 0 {
		j.Passes = 1
	}
	switch {
	case j.Name == "":
		return errors.New("it has no name: add name")
	case j.Kind != Epoch && j.Kind != Checkpoint && j.Kind != Weights:
		return fmt.Errorf("its kind is %q: write epoch, checkpoint or weights", j.Kind)
	case j.Size < 1 || j.Size > size.Most:
		return errors.New("it has no size: add size, such as 2TB")
	case j.Passes < 1 || j.Passes > 1e6:
		return errors.New("passes is 1 to 1000000")
	case j.Kind != Epoch && (j.Passes > 1 || j.Compute > 0):
		return errors.New("passes and compute belong to an epoch: leave them out")
	case j.Kind != Weights && j.Copies:
		return errors.New("copies belongs to weights: leave it out")
	case j.Kind != Checkpoint && (j.Interval > 0 || j.Notice > 0 || j.MTBF > 0):
		return errors.New("interval, notice and mtbf belong to a checkpoint: leave them out")
	}
	return nil
}
