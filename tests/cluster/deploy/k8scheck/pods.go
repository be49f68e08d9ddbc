package main

import (
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// checkObject finds mistakes in a decoded object that its type allows and an API server refuses.
func checkObject(_ string, object runtime.Object) (problems error) {
	switch o := object.(type) {
	case *appsv1.DaemonSet:
		problems = checkSelector(o.Spec.Selector, o.Spec.Template.Labels)
	case *appsv1.Deployment:
		problems = checkSelector(o.Spec.Selector, o.Spec.Template.Labels)
	case *batchv1.Job:
		if p := o.Spec.Template.Spec.RestartPolicy; p != corev1.RestartPolicyNever && p != corev1.RestartPolicyOnFailure {
			problems = fmt.Errorf("restartPolicy %q: a Job takes Never or OnFailure", p)
		}
	}
	if _, pod := podOf(object); pod != nil {
		problems = errors.Join(problems, checkPod(*pod))
	}
	return problems
}

func checkSelector(selector *metav1.LabelSelector, of map[string]string) error {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return err
	}
	if s.Empty() || !s.Matches(labels.Set(of)) {
		return fmt.Errorf("the selector %q does not select the template's labels %v", s, of)
	}
	return nil
}

func checkPod(pod corev1.PodSpec) (problems error) {
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		if volumes[v.Name] {
			problems = errors.Join(problems, fmt.Errorf("volume %s is there twice", v.Name))
		}
		volumes[v.Name] = true
	}
	used := map[string]bool{}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		if err := checkContainer(c, volumes, used); err != nil {
			problems = errors.Join(problems, fmt.Errorf("container %s: %w", c.Name, err))
		}
	}
	for name := range volumes {
		if !used[name] {
			problems = errors.Join(problems, fmt.Errorf("nobody mounts volume %s", name))
		}
	}
	return problems
}

func checkContainer(c corev1.Container, volumes, used map[string]bool) (problems error) {
	problem := func(format string, args ...any) { problems = errors.Join(problems, fmt.Errorf(format, args...)) }
	// A tag that moves makes nodes differ.
	if _, tag, found := strings.Cut(c.Image[strings.LastIndex(c.Image, "/")+1:], ":"); !found || tag == "latest" {
		problem("image %q has no version", c.Image)
	}
	privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	for _, m := range c.VolumeMounts {
		used[m.Name] = true
		if !volumes[m.Name] {
			problem("the pod has no volume %s", m.Name)
		}
		if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
			problem("mount %s is Bidirectional, which only a privileged container may be", m.Name)
		}
	}
	ports := map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil && probe.HTTPGet != nil && probe.HTTPGet.Port.StrVal != "" && !ports[probe.HTTPGet.Port.StrVal] {
			problem("a probe asks port %s, which is not there", probe.HTTPGet.Port.StrVal)
		}
	}
	return problems
}
