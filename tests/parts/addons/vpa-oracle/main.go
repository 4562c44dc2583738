// Decides about pods with the unmodified code of VPA's updater: capping, the priority of an update, and the patches of a resize.
//
// Standard input has one case on each line: a VPA, its pod, the LimitRanges of the namespace, and the time. Standard output has
// one answer on each line: whether the updater acts, and the pod's amounts after its patches, in milli-cpu and bytes.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/informers"
	"k8s.io/klog/v2"

	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/admission-controller/resource/pod/recommendation"
	vpa_types "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/apis/autoscaling.k8s.io/v1"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/features"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater/inplace"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater/priority"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/utils/limitrange"
	vpa_api_util "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/utils/vpa"
)

type question struct {
	Now         time.Time                       `json:"now"`
	VPA         vpa_types.VerticalPodAutoscaler `json:"vpa"`
	Pod         corev1.Pod                      `json:"pod"`
	LimitRanges []corev1.LimitRange             `json:"limitRanges"`
}

type amounts map[string]int64

type answer struct {
	Acts       bool                          `json:"acts"`
	Containers map[string]map[string]amounts `json:"containers,omitempty"`
	// The updater would have crashed, or the reason of its error.
	Failed string `json:"failed,omitempty"`
}

// The defaults of the updater's flags.
var config = priority.UpdateConfig{
	MinChangePriority:          0.1,
	PodLifetimeUpdateThreshold: 12 * time.Hour,
	EvictAfterOOMThreshold:     10 * time.Minute,
}

func decide(asked question) (reply answer) {
	defer func() {
		if crashed := recover(); crashed != nil {
			reply = answer{Failed: fmt.Sprint(crashed)}
		}
	}()
	factory := informers.NewSharedInformerFactory(nil, 0)
	known := factory.Core().V1().LimitRanges().Informer().GetIndexer()
	for i := range asked.LimitRanges {
		if err := known.Add(&asked.LimitRanges[i]); err != nil {
			return answer{Failed: err.Error()}
		}
	}
	limits, err := limitrange.NewLimitsRangeCalculator(factory)
	if err != nil {
		return answer{Failed: err.Error()}
	}
	capping := vpa_api_util.NewCappingRecommendationProcessor(limits)
	order := priority.NewUpdatePriorityCalculator(&asked.VPA, config, capping, priority.NewProcessor())
	order.AddPod(&asked.Pod, asked.Now, nil)
	if len(order.GetSortedPods(priority.NewDefaultPodEvictionAdmission())) == 0 {
		return answer{}
	}
	calculator := inplace.NewResourceInPlaceUpdatesCalculator(recommendation.NewProvider(limits, capping))
	patches, err := calculator.CalculatePatches(&asked.Pod, &asked.VPA)
	if err != nil {
		return answer{Failed: err.Error()}
	}
	containers := make([]map[string]amounts, len(asked.Pod.Spec.Containers))
	for i, container := range asked.Pod.Spec.Containers {
		containers[i] = map[string]amounts{
			"requests": amountsOf(container.Resources.Requests),
			"limits":   amountsOf(container.Resources.Limits),
		}
	}
	for _, patch := range patches {
		// /spec/containers/0/resources/requests/cpu
		parts := strings.Split(patch.Path, "/")
		if len(parts) != 7 {
			continue
		}
		var i int
		if _, err := fmt.Sscan(parts[3], &i); err != nil {
			return answer{Failed: err.Error()}
		}
		value, err := resource.ParseQuantity(fmt.Sprint(patch.Value))
		if err != nil {
			return answer{Failed: err.Error()}
		}
		containers[i][parts[5]][parts[6]] = amountOf(parts[6], value)
	}
	reply = answer{Acts: true, Containers: map[string]map[string]amounts{}}
	for i, container := range asked.Pod.Spec.Containers {
		reply.Containers[container.Name] = containers[i]
	}
	return reply
}

func amountsOf(list corev1.ResourceList) amounts {
	found := amounts{}
	for name, value := range list {
		found[string(name)] = amountOf(string(name), value)
	}
	return found
}

func amountOf(name string, value resource.Quantity) int64 {
	if name == "cpu" {
		return value.MilliValue()
	}
	return value.Value()
}

func main() {
	klog.SetOutput(os.Stderr)
	klog.LogToStderr(false)
	if err := features.MutableFeatureGate.Set("InPlace=true,PerVPAConfig=true"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		var asked question
		reply := answer{}
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			reply.Failed = err.Error()
		} else {
			reply = decide(asked)
		}
		if err := encoder.Encode(reply); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
